"""A plan: constants only, never above its ε, the same after JSON, and refusals that name a term."""

from __future__ import annotations

import copy
import inspect
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower import mechanism
from hdpfl_flower.account import FrozenPlan
from hdpfl_flower.accounting import Steps, calibrate, epsilon_of
from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import AccountingError, Declined
from hdpfl_flower.mechanism import (
    FREE_TERMS,
    Plan,
    RoundPlan,
    check_policy,
    check_unchanged,
    make_plan,
)
from hdpfl_flower.noise import RandomStream, add_noise
from hdpfl_flower.paper_noise import pfa_multiplier, robust_hdp_multiplier
from hdpfl_flower.profile import Profile
from hdpfl_flower.recount import recount

FALSE_ALARM = 1e-6
SECRET = 1.2345678
PROFILE: dict[str, Any] = {
    "budget": {"epsilon": 9.0, "delta": 1e-4},
    "run": {"epsilon": SECRET, "delta": 1e-5},
    "training": {"batch-size": 50, "declared-records": 200},
    "policy": {"max-rounds": 30, "min-clip-norm": 0.1, "max-clip-norm": 10.0},
}


def profile(**sections: dict[str, Any]) -> Profile:
    data = copy.deepcopy(PROFILE)
    for section, values in sections.items():
        data.setdefault(section, {}).update(values)
    return Profile.parse(data)


def terms(**changes: Any) -> RunTerms:
    return RunTerms.parse({"rounds": 3, **{k.replace("_", "-"): v for k, v in changes.items()}})


# What a plan holds.


def cost_of(plan: Plan) -> float:
    """Return ε as a report computes it from the ledger."""
    found = recount(FrozenPlan(plan.to_json(), "{}", plan.epsilon, plan.delta))
    assert found is not None
    return found.pld


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
    """No argument leads to data: where they lie changes nothing, nor how many there are."""
    assert list(inspect.signature(make_plan).parameters) == ["profile", "terms"]
    elsewhere = profile(data={"format": "csv", "path": "/nowhere/records.csv", "holdout": 0.5})
    assert make_plan(elsewhere, terms()) == make_plan(profile(), terms())


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 100),
)
def test_steps_a_round_are_epochs_of_the_declared_records(a: int, b: int, epochs: int) -> None:
    """k = ⌈K·N/b⌉ in exact arithmetic; opt-out (ε = inf) needs no calibration."""
    batch, records = min(a, b), max(a, b)
    no_privacy = {"epsilon": math.inf, "delta": 1e-9}
    site = profile(
        budget=no_privacy,
        run=no_privacy,
        training={"batch-size": batch, "declared-records": records},
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


# Budgets over rounds.


@pytest.mark.parametrize(("participations", "paid"), [(1, 1), (2, 2), (3, 3), (9, 3), (0, 3)])
def test_participations_are_what_is_paid_for(participations: int, paid: int) -> None:
    plan = make_plan(profile(), terms(participations=participations))
    assert (plan.rounds, plan.last_round, plan.epsilon) == (paid, 3, SECRET)
    assert plan.noise_multiplier == calibrate([Steps(0.25, 4 * paid)], SECRET, 1e-5)
    assert [plan.covers(r) for r in range(5)] == [False, True, True, True, False]
    assert plan.round(3, 1.0) == plan.round(1, 1.0)


def by_hand(plan: Plan, rounds: int, interval: float) -> float:
    """ε of so many rounds, straight from dp-accounting: none of our own code."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    step = plan.steps[0]
    event = dp_accounting.PoissonSampledDpEvent(
        step.sampling_prob, dp_accounting.GaussianDpEvent(plan.noise_multiplier)
    )
    accountant = PLDAccountant(value_discretization_interval=interval)
    return float(accountant.compose(event, rounds * step.count).get_epsilon(plan.delta))


@pytest.mark.parametrize(
    ("z", "epsilon"), [(3.0, 2.5), pytest.param(4.0, SECRET, marks=pytest.mark.slow)]
)
def test_given_noise_pays_for_as_many_rounds_as_fit(z: float, epsilon: float) -> None:
    """What is charged covers the rounds paid for, and one round more would cost more than ε."""
    site = profile(run={"epsilon": epsilon, "delta": 1e-5})
    plan = make_plan(site, terms(rounds=25, noise_multiplier=z))
    assert plan.noise_multiplier == z
    assert plan.last_round == 25
    assert 0 < plan.rounds < 25
    cost = by_hand(plan, plan.rounds, 1e-4)
    assert cost_of(plan) <= plan.epsilon <= epsilon
    assert cost <= 1.002 * plan.epsilon, "another grid: within its own rounding"
    assert plan.epsilon <= 1.004 * cost, "four digits, rounded up"
    assert by_hand(plan, plan.rounds + 1, 1e-4) > 0.998 * epsilon
    with pytest.raises(AssertionError):
        assert by_hand(plan, plan.rounds, 1e-4) <= 1.002 * (0.9 * plan.epsilon)


def test_much_noise_pays_for_all_rounds_and_is_charged_what_they_cost() -> None:
    plan = make_plan(profile(), terms(noise_multiplier=50.0))
    assert plan.rounds == 3
    assert by_hand(plan, 3, 1e-5) <= plan.epsilon < SECRET / 3
    absurd = make_plan(profile(), terms(noise_multiplier=1e12))
    assert cost_of(absurd) <= absurd.epsilon <= SECRET / 999


def test_given_noise_and_participations_compose() -> None:
    both = make_plan(profile(), terms(rounds=25, noise_multiplier=4.0, participations=2))
    assert both.rounds == 2
    assert cost_of(both) <= both.epsilon < SECRET
    affords = make_plan(profile(), terms(rounds=25, noise_multiplier=4.0)).rounds
    more = make_plan(profile(), terms(rounds=25, noise_multiplier=4.0, participations=24))
    assert more.rounds == affords < 24


@pytest.mark.parametrize("z", [1e-300, 1e-6, 0.5])
def test_noise_too_small_for_one_round_is_declined_at_once(z: float) -> None:
    """However small the server's noise is: the accountant never sees it."""
    with pytest.raises(Declined, match="'noise-multiplier' is too small") as caught:
        make_plan(profile(), terms(noise_multiplier=z))
    assert not any(character.isdigit() for character in str(caught.value))


def test_a_site_without_privacy_takes_the_given_noise_for_all_rounds() -> None:
    no_privacy = {"epsilon": math.inf, "delta": 1e-5}
    plan = make_plan(profile(budget=no_privacy, run=no_privacy), terms(noise_multiplier=0.7))
    assert (plan.rounds, plan.noise_multiplier, plan.epsilon) == (3, 0.7, math.inf)


@pytest.mark.parametrize("calibration", ["robust-hdp", "pfa"])
@pytest.mark.parametrize("noise", [0.0, 9.0])
def test_a_papers_formula_is_declined_by_a_real_site(calibration: str, noise: float) -> None:
    asked = terms(calibration=calibration, noise_multiplier=noise)
    with pytest.raises(Declined, match="'calibration' is a paper's formula"):
        make_plan(profile(), asked)


def test_a_simulated_site_takes_the_noise_of_the_paper() -> None:
    """Steps are K·N/b, not rounded up; what is charged is the nominal ε."""
    site = profile(simulation={"seed": 1}, training={"batch-size": 64})
    exact = 3 * 2 * 200 / 64
    for calibration, formula in (("robust-hdp", robust_hdp_multiplier), ("pfa", pfa_multiplier)):
        asked = terms(local_epochs=2, calibration=calibration)
        plan = make_plan(site, asked)
        assert plan.noise_multiplier == formula(SECRET, 1e-5, 64 / 200, exact)
        assert plan.epsilon == SECRET
        assert plan.steps == (Steps(64 / 200, 7),) * 3
        given = formula(SECRET, 1e-5, 64 / 200, exact * 2 / 3)
        early = make_plan(site, asked.updated(noise_multiplier=given))
        assert (early.rounds, early.epsilon, early.noise_multiplier) == (2, SECRET, given)


def test_a_plan_for_some_of_the_rounds_needs_them_alike() -> None:
    """Which rounds come is the server's choice: of unlike rounds it would take the dear ones."""
    unlike = (Steps(1.0, 1), Steps(0.1, 5))
    assert Plan(1.0, 1e-5, 1.0, 10.0, unlike, 0.1, 10.0, 2).rounds == 2
    with pytest.raises(AccountingError, match="alike"):
        Plan(1.0, 1e-5, 1.0, 10.0, unlike, 0.1, 10.0, 3)


def test_a_plan_of_an_older_ledger_is_read() -> None:
    plan = make_plan(profile(), terms())
    old = {k: v for k, v in json.loads(plan.to_json()).items() if k != "last_round"}
    read = Plan.from_json(json.dumps(old, sort_keys=True))
    assert (read.rounds, read.steps) == (plan.rounds, plan.steps)
    assert [read.covers(r) for r in range(5)] == [False, True, True, True, False]


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


# Refusals.


@pytest.mark.parametrize(
    ("policy", "change", "key"),
    [
        ({"strategies": ["fedavg"]}, {"strategy": "robust-hdp"}, "'strategy'"),
        ({}, {"model": "os:system"}, "'model'"),
        ({"models": ["a.b:c"]}, {"model": "a.b:d"}, "'model'"),
        ({"max-rounds": 5}, {"rounds": 6}, "'rounds'"),
        ({}, {"clip_norm": 0.0999}, "'clip-norm'"),
        ({}, {"clip_norm": 10.001}, "'clip-norm'"),
        ({"max-local-epochs": 3}, {"local_epochs": 4}, "'policy.max-local-epochs'"),
        ({}, {"local_epochs": 10**6}, "'policy.max-local-epochs'"),
        ({"max-local-steps": 3}, {"local_steps": 4}, "'policy.max-local-steps'"),
        ({}, {"local_steps": 10**6}, "'policy.max-local-steps'"),
        ({}, {"rounds": 10**9}, "'rounds'"),
    ],
)
def test_policy_refuses_by_name(policy: dict[str, Any], change: dict[str, Any], key: str) -> None:
    with pytest.raises(Declined, match=key) as caught:
        check_policy(profile(policy=policy), terms(**change))
    assert "\n" not in str(caught.value)
    assert not any(character.isdigit() for character in str(caught.value))


@pytest.mark.parametrize(
    ("policy", "change"),
    [
        ({}, {}),
        ({"strategies": ["fedavg", "minimum"]}, {"strategy": "minimum"}),
        ({"models": ["a.b:c"]}, {"model": "a.b:c"}),
        ({}, {"model": "mlp:64:32"}),
        ({"max-rounds": 5}, {"rounds": 5}),
        ({}, {"clip_norm": 0.1}),
        ({}, {"clip_norm": 10.0}),
        ({"max-local-epochs": 3, "max-local-steps": 4}, {"local_epochs": 3, "local_steps": 4}),
    ],
)
def test_policy_lets_pass_what_it_allows(policy: dict[str, Any], change: dict[str, Any]) -> None:
    check_policy(profile(policy=policy), terms(**change))


def other_value(key: str, value: Any) -> Any:
    given = {"evaluation": "none", "weights": "records", "fraction": 0.5, "delta": 1e-6,
             "subspace": "mean", "subspace-scope": "tensor", "estimator": "rpca", "guard": "cap",
             "calibration": "pfa", "noise": "client", "clip-quantile": 0.7,
             "server-schedule": "linear", "cluster-map": "pca", "first-batch": "full",
             "selection-mechanism": "gumbel", "selection-share": 0.3,
             "personal-noise": "records"}  # fmt: skip
    if key in given:
        return given[key]
    if isinstance(value, bool):
        return not value
    return f"{value}x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("key", RunTerms.keys())
def test_a_term_that_changes_mid_run_is_refused_by_name(key: str) -> None:
    config = {**terms().as_config(), "run-id": "r"}
    frozen = RunTerms.parse(config)
    changed = RunTerms.parse({**config, key: other_value(key, config[key])})
    plan = Plan(1.0, 1e-5, 1.0, 10.0, (Steps(0.1, 1),), 0.1, 10.0)
    check_unchanged(frozen, frozen, plan)
    if key in FREE_TERMS:
        check_unchanged(frozen, changed, plan)
    else:
        with pytest.raises(Declined, match=f"'{key}'"):
            check_unchanged(frozen, changed, plan)


def test_what_the_plan_was_made_from_is_never_free() -> None:
    """Free terms: a plan made with another value of them is the same plan, but for its bounds."""
    used = {"rounds", "local-epochs", "local-steps", "epsilon-cap", "learning-rate", "run-id",
            "participations", "noise-multiplier", "calibration", "first-batch", "selections",
            "selection-share", "selection-mechanism", "personal-noise",
            "personal-lambda"}  # fmt: skip
    assert not FREE_TERMS & (used | {"model", "strategy", "dataset", "schema", "seed"})
    config = terms().as_config()
    for key in FREE_TERMS:
        other = RunTerms.parse({**config, key: other_value(key, config[key])})
        assert make_plan(profile(), other) == make_plan(profile(), terms())


@pytest.mark.parametrize("clip", [0.0999, 10.001])
def test_the_clip_norm_moves_inside_frozen_bounds_only(clip: float) -> None:
    plan = Plan(1.0, 1e-5, 1.0, 10.0, (Steps(0.1, 1),), 0.1, 10.0)
    for inside in (0.1, 5.0, 10.0):
        check_unchanged(terms(), terms(clip_norm=inside), plan)
        assert plan.round(1, inside).noise_std == np.float64(inside)
    with pytest.raises(Declined, match="'clip-norm'"):
        check_unchanged(terms(), terms(clip_norm=clip), plan)


def test_the_cost_that_is_reported_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that calibrates for a laxer ε is caught by the plan's own accounting."""
    lax = lambda schedule, epsilon, delta: calibrate(schedule, 1.1 * epsilon, delta)  # noqa: E731
    monkeypatch.setattr(mechanism, "calibrate", lax)
    assert cost_of(make_plan(profile(), terms())) > SECRET
