"""Budgets over rounds: participations, noise that the terms give, the papers' formulas."""

from __future__ import annotations

import math

import pytest

from hdpfl_flower.errors import AccountingError, Declined
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_tools.simulation.scenarios.paper_formulas import pfa_multiplier, robust_hdp_multiplier
from tests.hdpfl_flower.ledger.plans import SECRET, cost_of, planned, profile, terms


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
        plan = planned(site, asked)
        assert plan.noise_multiplier == formula(SECRET, 1e-5, 64 / 200, exact)
        assert plan.epsilon == SECRET
        assert plan.steps == (Steps(64 / 200, 7),) * 3
        given = formula(SECRET, 1e-5, 64 / 200, exact * 2 / 3)
        early = planned(site, asked.updated(noise_multiplier=given))
        assert (early.rounds, early.epsilon, early.noise_multiplier) == (2, SECRET, given)


def test_a_plan_for_some_of_the_rounds_needs_them_alike() -> None:
    """Which rounds come is the server's choice: of unlike rounds it would take the dear ones."""
    unlike = (Steps(1.0, 1), Steps(0.1, 5))
    assert Plan(1.0, 1e-5, 1.0, 10.0, unlike, 0.1, 10.0, 2).rounds == 2
    with pytest.raises(AccountingError, match="alike"):
        Plan(1.0, 1e-5, 1.0, 10.0, unlike, 0.1, 10.0, 3)
