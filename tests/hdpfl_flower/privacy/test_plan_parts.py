"""What personal parts cost: tuning and charged masks are steps, a part that stays is none."""

from __future__ import annotations

import pytest

from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of, interval_for
from hdpfl_flower.privacy.plan import make_plan
from tests.hdpfl_flower.ledger.plans import SECRET, cost_of, profile, terms

DELTA, Q = 1e-5, 0.25


def check(plan_steps: list[Steps], noise_multiplier: float) -> None:
    """The steps, written out by hand, cost what was charged and no less."""
    event = event_of(plan_steps, noise_multiplier)
    assert 0.98 * SECRET < epsilon_of(event, DELTA, interval_for(SECRET, 10)) <= 1.002 * SECRET


def test_tuning_is_charged_with_the_rounds() -> None:
    plan = make_plan(profile(), terms(after={"tuning": {"steps": 6}}))
    without = make_plan(profile(), terms())
    check([Steps(Q, 4)] * 3 + [Steps(Q, 6)], plan.noise_multiplier)
    assert plan.noise_multiplier == calibrate([Steps(Q, 4)] * 3 + [Steps(Q, 6)], SECRET, DELTA)
    assert plan.noise_multiplier > 1.1 * without.noise_multiplier
    assert cost_of(plan) <= SECRET
    tuning, round_plan = plan.steps_beside("tuning", 0.7), plan.round(3, 0.7)
    assert (tuning.noise_std, tuning.divisor) == (round_plan.noise_std, round_plan.divisor)
    assert tuning.steps == Steps(Q, 6)


def test_the_step_of_a_charged_mask_is_charged() -> None:
    plan = make_plan(profile(), terms(work={"kind": "joint", "mask": "charged-top-k"}))
    check([Steps(Q, 5)] * 3, plan.noise_multiplier)
    assert [plan.round(r, 1.0).steps.count for r in (1, 2, 3)] == [5, 5, 5]
    full = make_plan(
        profile(), terms(work={"kind": "joint", "mask": "charged-top-k", "first-batch": "full"})
    )
    assert full.round(1, 1.0).steps == Steps(1.0, 2)
    check([Steps(1.0, 2), *[Steps(Q, 5)] * 2], full.noise_multiplier)


@pytest.mark.parametrize(
    "free",
    [
        {"work": {"kind": "joint"}},
        {"work": {"kind": "joint", "stays": "body"}},
        {"work": {"kind": "alternate"}},
        {"work": {"kind": "frozen"}},
        {"work": {"kind": "offset"}},
        {"work": {"kind": "joint", "mask": "noisy-updates"}},
        {"work": {"kind": "joint", "mask": "random"}},
        {"work": {"kind": "joint", "mask": "global-magnitude"}},
        {"after": {"shrink": {"scale": 0.05}}},
    ],
    ids=str,
)
def test_what_follows_from_noisy_steps_costs_nothing(free: dict[str, object]) -> None:
    """Whichever coordinates a step trains, it is one mechanism; its noise is that of FedAvg."""
    assert make_plan(profile(), terms(**free)) == make_plan(profile(), terms())
