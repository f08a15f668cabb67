"""The work that a run's terms may ask of a site: bounded before its accountant is asked."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

import hdpfl_flower.privacy.plan as module
import hdpfl_flower.releases.base as releases
from hdpfl_flower.config.profile import Policy
from hdpfl_flower.errors import Declined, ModelError
from hdpfl_flower.privacy import affordable_rounds, noisy_max
from hdpfl_flower.privacy.plan import make_plan, planned_steps
from hdpfl_flower.privacy.policy import check_policy
from tests.hdpfl_flower.ledger.plans import profile, terms

MANY = {"max-rounds": 1000}
"""The default, which the profile of these tests lowers."""
PRIVATE = {"strategy": "ditto", "second": {"kind": "private", "pull": 0.5}}


def test_the_defaults_together_stay_below_ten_million_steps() -> None:
    """Each default alone lets 1000 rounds of 10,000 steps pass: minutes for an accountant."""
    policy = Policy()
    assert policy.max_rounds * policy.max_local_steps == 10_000_000
    assert policy.max_steps == 1_000_000


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 1000, "local_steps": 10_000},
        {"rounds": 101, "local_steps": 10_000, "participations": 0},
        {"rounds": 1000, "local_steps": 1001},
        {"rounds": 1000, "local_steps": 10_000, "participations": 101},
        {"rounds": 1000, "local_steps": 10_000, "noise_multiplier": 5.0},
        {"rounds": 1000, "local_steps": 10_000, "calibration": "pfa"},
        {"rounds": 1000, "local_steps": 501, **PRIVATE},
        {
            "rounds": 1000,
            "local_steps": 1000,
            "local_epochs": 1,
            "work": {"kind": "plain", "first-batch": "full"},
        },
    ],
)
def test_step_counts_are_bounded(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the accountant was asked")

    monkeypatch.setattr(module, "calibrate", asked)
    monkeypatch.setattr(noisy_max, "selections_of", asked)
    for name in ("affordable_rounds", "charge_for"):
        monkeypatch.setattr(affordable_rounds, name, asked)
    monkeypatch.setattr(releases, "calibrate", asked)
    simulation = {"simulation": {"seed": 1}} if "calibration" in change else {}
    formula = asked if simulation else None
    site, run = profile(policy=MANY, **simulation), terms(**change)
    begun = time.monotonic()
    for refuse in (check_policy, partial(make_plan, nominal_noise=formula)):
        with pytest.raises(Declined, match=r"'policy.max-steps'; ask for fewer rounds") as caught:
            refuse(site, run)
        assert not any(character.isdigit() for character in str(caught.value))
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        ({"rounds": 7, "local_epochs": 3}, 7 * 12),
        ({"rounds": 7, "local_steps": 5}, 7 * 5),
        ({"rounds": 7, "local_steps": 5, "participations": 3}, 3 * 5),
        ({"rounds": 7, "local_steps": 5, "participations": 9}, 7 * 5),
        ({"rounds": 7, "local_steps": 5, **PRIVATE}, 2 * 7 * 5),
        (
            {"rounds": 7, "local_epochs": 2, "work": {"kind": "plain", "first-batch": "full"}},
            7 * 8 + 2,
        ),
        ({"rounds": 7, "local_steps": 5, "noise": "client"}, 7),
    ],
)
def test_a_plan_has_no_more_steps_than_were_counted(change: dict[str, Any], steps: int) -> None:
    site, run = profile(), terms(**change)
    assert planned_steps(site, run) == steps
    planned = sum(one.count for one in make_plan(site, run).schedule)
    assert steps - (8 if "full" in str(change) else 0) <= planned <= steps


def test_the_bound_itself_is_allowed_and_one_less_is_not() -> None:
    run = terms(rounds=6, local_steps=5)
    check_policy(profile(policy={"max-steps": 30}), run)
    for refuse in (check_policy, make_plan):
        with pytest.raises(Declined, match=r"policy\.max-steps"):
            refuse(profile(policy={"max-steps": 29}), run)


def test_no_more_choices_than_rounds() -> None:
    choosing = {"strategy": "ifca", "rounds": 3}
    check_policy(profile(), terms(**choosing, choice={"kind": "gaussian", "times": 3}))
    for refuse in (check_policy, make_plan):
        with pytest.raises(Declined, match=r"'choice.times' is more often than 'rounds'"):
            refuse(profile(), terms(**choosing, choice={"kind": "gaussian", "times": 4}))


def test_an_absurd_model_is_refused_with_the_policy() -> None:
    with pytest.raises(ModelError, match="plain digits"):
        check_policy(profile(), terms(model="mlp:1000000000"))
