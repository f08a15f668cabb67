"""What a site's policy refuses, and which terms may change in a run: each named in the refusal."""

from __future__ import annotations

from typing import Any

import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import Declined
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_flower.privacy.policy import FREE_TERMS, check_unchanged, noise_refusals
from tests.hdpfl_flower.ledger.plans import profile, terms


def other_value(key: str, value: Any) -> Any:
    given = {
        "evaluation": "none", "delta": 1e-6, "calibration": "pfa", "noise": "client",
        "task": {"kind": "survival", "shape": "2", "intervals": 3}, "choice": {"kind": "gumbel"},
        "second": {"kind": "private"}, "spend": {"kind": "late"}, "work": {"kind": "offset"},
        "backbone": {"kind": "own", "width": 3}, "after": {"prior": {"share": 0.2}},
        "first": {"moments": {"share": 0.2}}, "scales": "-0.5:0.2",
        "start": "sha256:" + "0" * 64, "start-parts": "body", "class-weights": "1,2",
        "sites": f"SHA256:{'A' * 43}", "work.pull": 3.0,
        "members": f"a={'0' * 32}", "spare-rounds": 0.3,
    }  # fmt: skip
    if key in given:
        return given[key]
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("key", RunTerms.keys())
def test_a_term_that_changes_mid_run_is_refused_by_name(key: str) -> None:
    config = {**terms().as_config(), "run-id": "r"}
    frozen = RunTerms.parse(config)
    changed = RunTerms.parse({**config, key: other_value(key, config.get(key))})
    plan = Plan(1.0, 1e-5, 1.0, 10.0, (Steps(0.1, 1),), 0.1, 10.0)
    check_unchanged(frozen, frozen, plan)
    if key in FREE_TERMS:
        check_unchanged(frozen, changed, plan)
    else:
        with pytest.raises(Declined, match=f"'{key}"):
            check_unchanged(frozen, changed, plan)


def test_what_the_plan_was_made_from_is_never_free() -> None:
    """Free terms: a plan made with another value of them is the same plan, but for its bounds."""
    used = {"rounds", "local-epochs", "local-steps", "epsilon-cap", "learning-rate", "run-id",
            "participations", "noise-multiplier", "calibration", "work.kind", "choice.kind",
            "second.kind", "second.pull"}  # fmt: skip
    assert not FREE_TERMS & (used | {"model", "strategy", "dataset", "schema"})
    config = terms(work={"kind": "plain"}).as_config()
    for key in FREE_TERMS:
        other = RunTerms.parse({**config, key: other_value(key, config[key])})
        assert make_plan(profile(), other) == make_plan(profile(), terms())


# --- who may ask a site for noise on its whole update in place of its records


def test_noise_of_the_client_is_declined_unless_the_policy_allows_it() -> None:
    (refusal,) = noise_refusals(profile(), terms(noise="client"))
    assert "'client-noise' is not set" in refusal[1]
    assert not list(noise_refusals(profile(policy={"client-noise": True}), terms(noise="client")))


def test_a_simulated_site_may() -> None:
    assert not list(noise_refusals(profile(simulation={"seed": 1}), terms(noise="client")))


def test_noise_on_records_needs_no_such_policy() -> None:
    assert not list(noise_refusals(profile(), terms(noise="records")))
