"""What a plan pays for beside equal steps: a first round on all records, choices, two models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hdpfl_flower.errors import Declined
from hdpfl_flower.privacy.accounting import Gaussians, Steps, epsilon_of, event_of, interval_for
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.privacy.policy import check_policy
from tests.hdpfl_flower.ledger.plans import SECRET, cost_of, profile, terms

CHOOSING = {"choice": {"kind": "gaussian", "times": 2, "share": 0.3}}
PERSONAL = {"second": {"kind": "private", "pull": 0.1}}
FULL = {"work": {"kind": "plain", "first-batch": "full"}}
DELTA = 1e-5


def check_cost(plan: Plan, doubled: int = 1, choices: int = 0, tuned: Sequence[Steps] = ()) -> None:
    """Fail where what the round plans do, written out by hand, costs more than was charged."""
    done = [plan.round(r, 1.0).steps for r in range(1, plan.rounds + 1)] * doubled
    done += tuned
    beside = [plan.cost_of("choice")] if plan.cost_of("choice") else []
    assert sum(one.count for one in beside) == choices
    event = event_of(done, plan.noise_multiplier, beside)
    assert epsilon_of(event, DELTA, interval_for(SECRET, 10)) <= 1.002 * plan.epsilon
    assert 0.98 * plan.epsilon < cost_of(plan) <= plan.epsilon == SECRET


def test_choices_are_charged_beside_the_steps() -> None:
    plan, without = make_plan(profile(), terms(**CHOOSING)), make_plan(profile(), terms())
    check_cost(plan, choices=2)
    assert plan.noise_multiplier > without.noise_multiplier
    assert without.cost_of("choice") is None
    same = make_plan(profile(), terms(choice={"kind": "none"}))
    assert same == without


def test_gumbel_choices_are_charged_as_well() -> None:
    plan = make_plan(profile(), terms(choice={"kind": "gumbel", "times": 2, "share": 0.3}))
    check_cost(plan, choices=2)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.cost_of("choice") != make_plan(profile(), terms(**CHOOSING)).cost_of("choice")


@pytest.mark.parametrize("field", ["counts", "scores"])
def test_counts_are_charged_beside_the_steps(field: str) -> None:
    without = make_plan(profile(), terms())
    kind = {"counts": "prior", "scores": "scores"}[field]
    for share, most in ((0.1, 1.06), (0.5, 1.5)):
        plan = make_plan(profile(), terms(after={kind: {"share": share}}))
        counts = plan.cost_of(field)
        assert counts is not None
        alone = epsilon_of(event_of([], 1.0, [counts]), DELTA, interval_for(SECRET, 1))
        assert alone == pytest.approx(share * plan.epsilon, rel=0.01)
        assert counts in plan.beside
        steps = [plan.round(r, 1.0).steps for r in range(1, plan.rounds + 1)]
        event = event_of(steps, plan.noise_multiplier, [counts])
        assert epsilon_of(event, DELTA, interval_for(SECRET, 10)) <= 1.002 * plan.epsilon
        assert 0.98 * plan.epsilon < cost_of(plan) <= plan.epsilon == SECRET
        assert 1 < plan.noise_multiplier / without.noise_multiplier <= most
        assert Plan.from_json(plan.to_json()) == plan
    assert without.cost_of(field) is None


def test_both_kinds_of_counts_are_charged_together() -> None:
    plan = make_plan(profile(), terms(after={"prior": {"share": 0.3}, "scores": {"share": 0.3}}))
    assert plan.beside == (plan.cost_of("counts"), plan.cost_of("scores"))
    for alone in ({"after": {"prior": {"share": 0.3}}}, {"after": {"scores": {"share": 0.3}}}):
        assert plan.noise_multiplier > make_plan(profile(), terms(**alone)).noise_multiplier
    assert plan.cost_of("counts") is not None
    steps = [plan.round(r, 1.0).steps for r in range(1, plan.rounds + 1)]
    event = event_of(steps, plan.noise_multiplier, [plan.cost_of("counts"), plan.cost_of("counts")])
    assert epsilon_of(event, DELTA, interval_for(SECRET, 10)) <= 1.002 * plan.epsilon


def test_a_private_personal_model_is_charged_like_the_update() -> None:
    plan, without = make_plan(profile(), terms(**PERSONAL)), make_plan(profile(), terms())
    check_cost(plan, doubled=2)
    assert plan.noise_multiplier > 1.1 * without.noise_multiplier
    plain = make_plan(profile(), terms(second={"kind": "kept", "pull": 0.1}))
    assert plain == without


def test_round_1_takes_all_records_once_an_epoch_and_divides_by_the_declared() -> None:
    plan = make_plan(profile(), terms(local_epochs=2, **FULL))
    first, later = plan.round(1, 1.0), plan.round(2, 1.0)
    assert (first.steps.sampling_prob, first.steps.count, first.divisor) == (1.0, 2, 200.0)
    assert (later.steps.sampling_prob, later.steps.count, later.divisor) == (0.25, 8, 50.0)
    check_cost(plan)


def test_all_of_it_together() -> None:
    plan = make_plan(profile(), terms(**CHOOSING, **PERSONAL, **FULL))
    check_cost(plan, 2, 2)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "extra",
    [
        CHOOSING,
        PERSONAL,
        FULL,
        {"after": {"prior": {"share": 0.25}}},
        {"after": {"scores": {"share": 0.5}}},
    ],
    ids=["choices", "personal", "full", "prior", "scores"],
)
@pytest.mark.parametrize(
    "more",
    [
        {"noise": "client"},
        {"noise_multiplier": 2.0},
        {"participations": 2},
        {"calibration": "robust-hdp"},
    ],
    ids=str,
)
def test_unequal_steps_are_declined(extra: dict[str, Any], more: dict[str, Any]) -> None:
    with pytest.raises(Declined, match=r"cannot be combined with .*only for equal rounds"):
        check_policy(profile(policy={"client-noise": True}), terms(**extra, **more))
    check_policy(profile(), terms(**extra))


def test_without_privacy_there_is_no_noise_anywhere() -> None:
    open_ = {"epsilon": float("inf")}
    plan = make_plan(profile(budget=open_, run=open_), terms(**CHOOSING, **FULL))
    assert plan.noise_multiplier == 0

    assert plan.cost_of("choice") == Gaussians(0.0, 2)
