"""What leaves a site follows what its ledger holds: sealed before sent, one plan a run."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower import server_wire, wire
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_tools.site.ledger_checks.recompute import recompute_epsilon
from tests.client_app.messages import ask, model_of, send
from tests.client_app.test_app import code
from tests.privacy.replay import observe
from tests.privacy.sites import EPSILON, digits, make_site, terms_of


def entries(profile: Path) -> list[str]:
    account = Ledger(profile.with_name("ledger.sqlite")).account()
    return [release.status for release in account.releases.values()]


def test_what_is_not_sealed_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = make_site(tmp_path / "site", digits(48))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Chain, "attach", full)
        assert code(ask(profile, terms_of())) == wire.FAILED
    assert entries(profile) == ["lost"]
    assert code(ask(profile, terms_of())) == wire.DECLINED, "a lost release stays lost"
    assert ask(profile, terms_of(), 2).has_content()


def test_a_run_keeps_the_plan_that_was_charged(tmp_path: Path) -> None:
    """A profile that is edited between two rounds counts from the next run on."""
    profile = make_site(tmp_path / "site", digits(48))
    assert ask(profile, terms_of()).has_content()
    before = Ledger(profile.with_name("ledger.sqlite")).account()
    profile.write_text(
        profile.read_text()
        .replace(f"epsilon = {EPSILON}", "epsilon = 6.0")
        .replace("batch-size = 12", "batch-size = 3")
    )
    assert ask(profile, terms_of(), 2).has_content()
    after = Ledger(profile.with_name("ledger.sqlite")).account()
    assert after.plans == before.plans
    assert after.spent() == before.spent() == (EPSILON, 1e-5)


def test_what_runs_is_what_the_ledger_says(tmp_path: Path) -> None:
    """z, q, divisor and steps of a run that began under another profile are those of its plan."""
    profile = make_site(tmp_path / "site", digits(48))
    terms = terms_of(rounds=3)
    assert ask(profile, terms).has_content()
    text = profile.read_text()
    profile.write_text(text.replace("batch-size = 12", "batch-size = 3"))
    observed = observe(profile, terms)  # round 1 is the same request again: no steps
    assert observed.plan.divisor == 12.0
    assert len(observed.steps) == 2 * observed.plan.steps[0].count
    std = observed.plan.noise_multiplier * terms.clip_norm
    assert {(s.probability, s.std) for s in observed.steps} == {(0.25, std)}


def test_what_runs_costs_what_was_charged(tmp_path: Path) -> None:
    """The accountant's word on the frozen plan, asked again."""
    profile = make_site(tmp_path / "site", digits(48))
    assert ask(profile, terms_of()).has_content()
    (frozen,) = Ledger(profile.with_name("ledger.sqlite")).account().plans.values()
    found = recompute_epsilon(frozen)
    assert found is not None
    assert 0.99 * EPSILON <= found.pld <= EPSILON == frozen.epsilon


def test_declining_never_depends_on_records(tmp_path: Path) -> None:
    """Policy and budget decide, and the same for whatever lies in the files."""

    def answers(folder: Path, count: int) -> list[object]:
        profile, model = make_site(folder, digits(count)), model_of(terms_of())
        found: list[object] = []
        for terms in (
            terms_of(rounds=2000), terms_of(**{"clip-norm": 1e9}), terms_of(model="os:getcwd"),
            terms_of(**{"local-epochs": 1000}), terms_of(), terms_of(**{"run-id": "b"}),
            terms_of(**{"run-id": "c"}),
        ):  # fmt: skip
            content = server_wire.write_instructions(terms, 1, model)
            reply = send({"profile": str(profile)}, wire.TRAIN, content)
            found.append(code(reply) if reply.has_error() else "content")
        return found

    few, many = answers(tmp_path / "few", 1), answers(tmp_path / "many", 500)
    assert few == many
    assert few == [wire.DECLINED] * 4 + ["content"] * 2 + [wire.DECLINED]


@pytest.mark.parametrize("value", [1e-38, 1e20, 3e38])
def test_a_hostile_model_gets_a_reply_like_any_other(tmp_path: Path, value: float) -> None:
    """Weights that make every loss and gradient overflow provoke no code of their own."""
    profile = make_site(tmp_path / "site", digits(48))
    arrays = {n: np.full(a.shape, value, np.float32) for n, a in model_of(terms_of()).items()}
    content = server_wire.write_instructions(terms_of(), 1, server_wire.write_model(arrays))
    reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert reply.has_content()
    assert entries(profile) == ["sent"]
