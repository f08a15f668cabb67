"""A plan: constants only, never above its ε, and the same after JSON."""

from __future__ import annotations

import inspect
import json
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower.errors import Declined
from hdpfl_flower.privacy import plan as mechanism
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.privacy.plan import Plan, RoundPlan, make_plan
from tests.hdpfl_flower.ledger.plans import SECRET, cost_of, profile, terms

FALSE_ALARM = 1e-6

# What a plan holds.


def test_a_plan_follows_from_the_profile_and_the_terms() -> None:
    plan = make_plan(profile(), terms(local_epochs=2))
    assert plan.steps == (Steps(0.25, 8),) * 3
    assert (plan.epsilon, plan.delta, plan.divisor, plan.rounds) == (SECRET, 1e-5, 50.0, 3)
    assert plan.noise_multiplier == calibrate([Steps(0.25, 24)], SECRET, 1e-5)
    assert (plan.min_clip_norm, plan.max_clip_norm) == (0.1, 10.0)
    for server_round in (1, 2, 3):
        this = plan.round(server_round, 0.5)
        assert (this.steps, this.clip_norm, this.divisor) == (Steps(0.25, 8), 0.5, 50.0)
        assert this.noise_std == plan.noise_multiplier * 0.5


def test_nothing_about_the_records_can_enter_a_plan() -> None:
    """No argument leads to data: where they lie changes nothing, nor how many there are.

    The last one is a simulation's alone; a site whose noise protects somebody refuses it.
    """
    assert list(inspect.signature(make_plan).parameters) == ["profile", "terms", "nominal_noise"]
    with pytest.raises(Declined, match="which gives no privacy"):
        make_plan(profile(), terms(calibration="pfa"), nominal_noise=lambda _: 1.0)
    elsewhere = profile(data={"format": "csv", "path": "/nowhere/records.csv", "holdout": 0.5})
    assert make_plan(elsewhere, terms()) == make_plan(profile(), terms())


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 100))
def test_steps_a_round_are_epochs_of_the_declared_records(a: int, b: int, epochs: int) -> None:
    """k = ⌈K·N/b⌉ in exact arithmetic; opt-out (ε = inf) needs no calibration."""
    batch, records = min(a, b), max(a, b)
    no_privacy = {"epsilon": math.inf, "delta": 1e-9}
    site = profile(
        budget=no_privacy,
        run=no_privacy,
        training={"batch-size": batch, "declared-records": records},
        policy={"max-steps": 10**12},
    )
    plan = make_plan(site, terms(local_epochs=epochs))
    assert plan.steps[0].count == math.ceil(Fraction(epochs * records, batch))
    assert plan.steps[0].sampling_prob == batch / records <= 1
    assert make_plan(site, terms(local_epochs=epochs, local_steps=7)).steps[0].count == 7


@pytest.mark.parametrize(
    ("batch", "records", "epochs", "steps"),
    [(1, 1, 1, 1), (10, 100, 1, 10), (10, 99, 1, 10), (10, 101, 1, 11), (99, 100, 1, 2),
     (100, 100, 3, 3), (3, 10, 3, 10), (2, 7, 1, 4)],
)  # fmt: skip
def test_steps_at_the_edges(batch: int, records: int, epochs: int, steps: int) -> None:
    no_privacy = {"epsilon": math.inf, "delta": 1e-9}
    training = {"batch-size": batch, "declared-records": records}
    site = profile(budget=no_privacy, run=no_privacy, training=training)
    assert make_plan(site, terms(local_epochs=epochs)).steps[0].count == steps


# ε.


@settings(max_examples=4)
@given(
    st.sampled_from([0.2, SECRET, 6.0]),
    st.sampled_from([(200, 200), (20, 40), (40, 100)]),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([1e-4, 1.0, 1e4]),
    st.sampled_from([1e-30, 1e30]),
)
def test_a_run_never_costs_more_than_the_profile_says(
    epsilon: float, sizes: tuple[int, int], rounds: int, epochs: int, clip: float, rate: float
) -> None:
    training = {"batch-size": sizes[0], "declared-records": sizes[1]}
    site = profile(run={"epsilon": epsilon, "delta": 1e-5}, training=training)
    plan = make_plan(
        site, terms(rounds=rounds, local_epochs=epochs, clip_norm=clip, learning_rate=rate)
    )
    assert plan.epsilon == epsilon
    assert cost_of(plan) <= epsilon
    # Again without the plan's own way to its cost: another interval, the steps written out.
    assert epsilon_of(plan.event(), 1e-5, 3e-5 * epsilon) <= 1.002 * epsilon


def test_absurd_terms_are_noisier_not_dearer() -> None:
    site = profile(training={"batch-size": 200})
    modest, absurd = (
        make_plan(site, terms(rounds=1, local_epochs=1)),
        make_plan(site, terms(rounds=1000, local_epochs=100, learning_rate=1e30, clip_norm=1e30)),
    )
    assert modest.epsilon == absurd.epsilon
    assert cost_of(absurd) <= SECRET
    # 100,000 Gaussians need √100,000 times the noise of one (each within .3 % of the least).
    ratio = absurd.noise_multiplier / modest.noise_multiplier
    assert ratio == pytest.approx(math.sqrt(100_000), rel=3e-3)


@pytest.mark.parametrize(("cap", "epsilon"), [(0.0, SECRET), (0.5, 0.5), (5.0, SECRET)])
def test_a_cap_lowers_epsilon_and_never_raises_it(cap: float, epsilon: float) -> None:
    plan = make_plan(profile(), terms(epsilon_cap=cap))
    assert plan.epsilon == epsilon
    assert plan.noise_multiplier == calibrate(plan.steps, epsilon, 1e-5)


def test_no_privacy_is_said_and_a_cap_gives_some() -> None:
    no_privacy = {"epsilon": math.inf, "delta": 1e-5}
    site = profile(budget=no_privacy, run=no_privacy)
    plan = make_plan(site, terms())
    assert plan.epsilon == cost_of(plan) == math.inf
    assert plan.round(1, 1.0).noise_std == plan.update_noise_std(1, 1.0, 1.0) == 0
    assert Plan.from_json(plan.to_json()) == plan
    capped = make_plan(site, terms(epsilon_cap=2.0))
    assert cost_of(capped) <= capped.epsilon == 2


def test_the_cost_that_is_reported_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that calibrates for a laxer ε is caught by the plan's own accounting."""
    lax = lambda schedule, epsilon, delta, _: calibrate(schedule, 1.1 * epsilon, delta)  # noqa: E731
    monkeypatch.setattr(mechanism, "calibrate", lax)
    assert cost_of(make_plan(profile(), terms())) > SECRET


# The noise of an update.


def check_update_noise(plan: Plan, claimed: float) -> None:
    """The steps' noises on an empty sum, as SGD adds them up, against a χ² bound at FALSE_ALARM."""
    this, rate, coordinates, stream = plan.round(1, 0.5), 0.3, 20_000, RandomStream(bytes(32))
    update = torch.zeros(coordinates)
    for _ in range(this.steps.count):
        noisy = add_noise(torch.zeros(coordinates), this.noise_std, stream)
        update -= rate / this.divisor * noisy
    ratio = float(update.double().square().sum()) / claimed**2
    low, high = stats.chi2(coordinates).isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2])
    assert low < ratio < high


def test_the_claimed_noise_of_an_update_is_that_of_its_steps() -> None:
    plan = make_plan(profile(), terms())
    claimed = plan.update_noise_std(1, 0.5, 0.3)
    check_update_noise(plan, claimed)
    for wrong in (2 / 3, 1.5, 1 / math.sqrt(plan.steps[0].count), 50.0, 2.0):
        with pytest.raises(AssertionError):
            check_update_noise(plan, wrong * claimed)


# JSON and texts.


@given(
    st.floats(1e-3, 1e3) | st.just(math.inf),
    st.floats(0, 1e6),
    st.lists(st.builds(Steps, st.floats(1e-9, 1), st.integers(0, 10**9)), max_size=5),
)
def test_a_plan_survives_json(epsilon: float, z: float, steps: list[Steps]) -> None:
    plan = Plan(epsilon, 1e-5, z, 64.0, tuple(steps), 1e-4, 1e4)
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    assert Plan.from_json(text).to_json() == text
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_no_text_of_a_plan_shows_a_number() -> None:
    plan = make_plan(profile(), terms())
    for thing in (plan, plan.round(1, 1.0), [plan], {"plan": plan}):
        for text in (repr(thing), str(thing), f"{thing}"):
            assert "1.23" not in text
            assert "50" not in text.split(" at 0x")[0]
            assert "noise" not in text
    assert isinstance(plan.round(1, 1.0), RoundPlan)
