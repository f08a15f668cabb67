"""The audit of personal parts: no rule is refuted, the published mask is, and so is every mutant.

Verdicts rest on the sure bound: one audit in a million of right code is refuted. That the attack
sees something rests on the 95 % bound, seven standard errors away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from client_app.releases import moments, prior, scores
from hdpfl_flower.config.profile import Training
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines import dpsgd
from hdpfl_flower.errors import AccountingError
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.site.audit import CLIP_NORM, CONFIDENT, default_training
from tests.client_app.audits import neighbours as audit_neighbours
from tests.client_app.audits.neighbours import (
    _OTHERS,
    _outside,
    _with,
    _worst,
    attack_first,
    attack_head,
    attack_prior,
    attack_scores,
    attack_support,
)
from tests.client_app.audits.personal import (
    EPSILON,
    PUBLISHED,
    RULES,
    WIDTH,
    attack_rule,
    own_site,
    personal_terms,
)

HONEST = [rule for rule in RULES if rule != PUBLISHED]
QUICK = ("fedrep", "ppsgd", "dsu, charged-top-k", "tuning, head")
HEAD = 8 * 4 + 4
"""Numbers of the head in the attack on it."""

Noise = Callable[[torch.Tensor, float, RandomStream], torch.Tensor]


def some_slow(rules: list[str]) -> list[object]:
    return [pytest.param(r, marks=[] if r in QUICK else pytest.mark.slow) for r in rules]


def noise_of(factor: Callable[[int], float]) -> Noise:
    """Return a noise whose scale is multiplied by a factor of the number of coordinates."""
    return lambda total, std, stream: add_noise(total, factor(total.numel()) * std, stream)


@pytest.mark.parametrize("rule", QUICK)
def test_an_honest_rule_is_not_refuted(rule: str) -> None:
    """The audit of all rules is in ``commands/test_audit.py``, with that of the published mask."""
    finding = attack_rule(rule, default_training())
    assert finding.plan.epsilon == EPSILON
    assert not finding.violates
    assert finding.bound(CONFIDENT) > 0.5, "the attack sees what is released"


def refuted(rule: str, training: Training) -> bool:
    """Whether one of four attacks finds it: one alone misses a head's noise in about 15 of 100."""
    return any(attack_rule(rule, training).violates for _ in range(4))


@pytest.mark.parametrize("rule", some_slow(HONEST))
def test_a_third_of_the_noise_is_refuted(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(dpsgd, "add_noise", noise_of(lambda _: 1 / 3))
    assert refuted(rule, default_training())


@pytest.mark.parametrize("rule", some_slow(["fedrep", "dsu, global-magnitude"]))
def test_a_head_without_noise_is_refuted(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    monkeypatch.setattr(dpsgd, "add_noise", noise_of(lambda size: float(size > WIDTH + 1)))
    assert refuted(rule, default_training())


def test_tuning_that_is_not_paid_for_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Plan.steps_beside

    def cheap(plan: Plan, release: str, clip_norm: float) -> object:
        made = honest(plan, release, clip_norm)
        return replace(made, noise_std=made.noise_std / 4)

    monkeypatch.setattr(Plan, "steps_beside", cheap)
    assert refuted("tuning, head", default_training())


def test_a_number_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpsgd, "add_noise", lambda total, std, stream: total * torch.nan)
    with pytest.raises(AccountingError, match="not finite"):
        attack_rule("fedper", default_training(), releases=2)


# The published mask.


def test_the_published_mask_is_refuted() -> None:
    """By the support alone: the numbers on it have all the noise that the plan says."""
    finding = attack_rule(PUBLISHED, default_training())
    assert finding.violates
    assert not finding.evidence.gaussian  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["charged-top-k", "random", "global-magnitude"])
def test_the_support_of_an_honest_mask_shows_nothing(mask: str) -> None:
    finding = attack_support(default_training(), rule=f"dsu, {mask}")
    assert not finding.violates
    assert finding.bound(CONFIDENT) < 0.5
    assert finding.plan.steps[0].sampling_prob == 0.2


# The prior.


@pytest.mark.parametrize("task", audit_neighbours.PRIORS, ids=["counts", "residuals"])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_priors_need_their_noise(monkeypatch: pytest.MonkeyPatch, task: Task, scale: float) -> None:
    monkeypatch.setattr(prior, "add_noise", noise_of(lambda _: scale))
    finding = attack_prior(task, default_training())
    assert finding.plan.epsilon == 4
    assert finding.violates == (scale < 1)
    assert finding.bound(CONFIDENT) > 2, "the attack sees what is released"


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_half_a_histograms_noise_is_refuted(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    monkeypatch.setattr(scores, "add_noise", noise_of(lambda _: scale))
    finding = attack_scores(default_training())
    assert finding.plan.epsilon == 4
    assert finding.violates == (scale < 1)
    assert finding.bound(CONFIDENT) > 2, "the attack sees what is released"


@pytest.mark.parametrize("content", ["scales", "table"])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_half_the_noise_of_a_first_message_is_refuted(
    monkeypatch: pytest.MonkeyPatch, content: str, scale: float
) -> None:
    monkeypatch.setattr(moments, "add_noise", noise_of(lambda _: scale))
    finding = attack_first(content, default_training())
    assert finding.plan.epsilon == 4
    assert finding.violates == (scale < 1)
    assert finding.bound(CONFIDENT) > 2, "the attack sees the release"


# The record outside the batch.


def test_fedrep_does_not_show_who_trained_the_head() -> None:
    finding = attack_head(default_training())
    assert not finding.violates
    assert finding.plan.epsilon == 8


def test_a_head_trained_without_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the body is looked at, in whose batch the record never is."""
    monkeypatch.setattr(dpsgd, "add_noise", noise_of(lambda size: float(size != HEAD)))
    assert attack_head(default_training()).violates


def shift_of_the_body(monkeypatch: pytest.MonkeyPatch, noisy_head: bool) -> float:
    """Return how far a record outside the batch moves the body's sum, in C, given the same noise.

    The same noise means the same releases: where the head's step is noisy, both runs go on from one
    value of it. A head without noise is no release, and each run goes on from its own.
    """
    terms = RunTerms().updated(
        **RULES["fedrep"], model="mlp:8", rounds=1, local_steps=2, clip_norm=CLIP_NORM,
        learning_rate=audit_neighbours._RATE, evaluation="none",
    )  # fmt: skip
    task, size = audit_neighbours._POINTS, _OTHERS + 1
    sums: list[torch.Tensor] = []
    released: list[torch.Tensor] = []

    def replay(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
        if total.numel() != HEAD:
            sums.append(total.clone())
        elif not noisy_head:
            return total
        if len(released) < 2:
            released.append(add_noise(total, std, stream))
            return released[-1].clone()
        return released[0 if total.numel() == HEAD else 1].clone()

    with own_site(terms, task, default_training(), 8.0, size, size) as opened:
        site = replace(opened, draw=_outside)
        start, records, _ = _worst(site)
        monkeypatch.setattr(dpsgd, "add_noise", replay)
        for last in (True, False):
            site.over(_with(records, last)).round(start, 1, store=False)
    assert len(sums) == 2
    return float(torch.linalg.vector_norm(sums[0] - sums[1])) / CLIP_NORM


def test_a_record_outside_the_batch_shifts_the_body_by_exactly_0() -> None:
    """Eight times: of one draw of the noise a record's gradient may be 0."""
    for _ in range(8):
        with pytest.MonkeyPatch.context() as patch:
            assert shift_of_the_body(patch, noisy_head=True) == 0


def test_a_head_without_noise_shifts_the_body_beyond_c(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shift_of_the_body(monkeypatch, noisy_head=False) > 1


# Which terms are audited.


def test_terms_without_parts_are_none_of_these() -> None:
    assert personal_terms(RunTerms(rounds=7)) is None


def test_the_parts_of_a_run_are_audited_on_the_canaries_model() -> None:
    run = RunTerms().updated(
        rounds=30, model="cnn", work={"kind": "joint"}, after={"tuning": {"steps": 3}}
    )
    own = personal_terms(run)
    assert own == RunTerms().updated(work={"kind": "joint"}, after={"tuning": {"steps": 3}})


def test_it_leaves_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    attack_rule("fedrep", default_training(), releases=2)
    assert not list(tmp_path.iterdir())
