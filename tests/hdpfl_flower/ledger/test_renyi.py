"""Rényi filter's numbers: against dp-accounting's own accountant, and rounded to the safe side."""

from __future__ import annotations

import math
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.ledger.renyi import capacity, of_gaussian, of_pure, prices_of
from hdpfl_flower.privacy.accounting import (
    Gaussians,
    PureSelections,
    Steps,
    calibrate,
    epsilon_of,
    event_of,
)
from hdpfl_flower.privacy.plan import Plan, make_plan
from hdpfl_tools.site.reports.lifetime import least_epsilon, order_for
from tests.hdpfl_flower.ledger.plans import profile, terms


def by_library(event: dp_accounting.DpEvent, order: int) -> float:
    """Return an event's divergence as dp-accounting's accountant has it."""
    return float(RdpAccountant(orders=[order]).compose(event)._rdp[0])


def price_of(plan: Plan, order: int) -> float:
    return math.fsum(price.each * price.count for price in prices_of(plan, order))


def exactly(q: float, z: float, order: int) -> float:
    """Return a step's divergence by the sum in rationals, its exponentials to 40 digits."""
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 60
        total, p = Decimal(0), Fraction(q)
        for i in range(order + 1):
            weight = math.comb(order, i) * p**i * (1 - p) ** (order - i)
            exponent = (Decimal(i * i - i) / (2 * Decimal(z) ** 2)).exp()
            total += Decimal(weight.numerator) / Decimal(weight.denominator) * exponent
        return float(total.ln() / (order - 1))


@settings(max_examples=60, deadline=None)
@given(
    q=st.floats(1e-4, 0.999), z=st.floats(0.4, 300), order=st.integers(2, 64),
    count=st.integers(1, 10_000),
)  # fmt: skip
def test_plans_cost_as_the_library_rounded_up(q: float, z: float, order: int, count: int) -> None:
    plan = Plan(1.0, 1e-5, z, 1.0, (Steps(q, count),), 0.1, 1.0)
    event = event_of(plan.schedule, z)
    found, theirs = price_of(plan, order), by_library(event, order)
    # The library's logarithm of nearly 1 has an error of its own, of about 1e-14 a step.
    assert theirs - 1e-13 * count * order <= found <= theirs * (1 + 1e-8) + 1e-13 * count * order


@pytest.mark.parametrize("q", [1e-5, 0.01, 0.2, 0.9])
@pytest.mark.parametrize("z", [0.5, 3.0, 1000.0])
@pytest.mark.parametrize("order", [2, 5, 50])
def test_a_step_is_never_below_the_exact_sum(q: float, z: float, order: int) -> None:
    plan = Plan(1.0, 1e-5, z, 1.0, (Steps(q, 1),), 0.1, 1.0)
    exact = exactly(q, z, order)
    assert exact < price_of(plan, order) <= exact * (1 + 1e-8)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("order", [2, 5, 50])
def test_a_pure_choice_costs_that_of_randomized_response(epsilon: float, order: int) -> None:
    p = Fraction(1) / (1 + Fraction(math.exp(-epsilon)))
    moment = p**order / (1 - p) ** (order - 1) + (1 - p) ** order / p ** (order - 1)
    exact = (math.log(moment.numerator) - math.log(moment.denominator)) / (order - 1)
    found = of_pure(epsilon, order)
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-6) + 1e-12
    assert found <= min(epsilon, order * epsilon**2 / 2)  # Bun and Steinke, TCC 2016


def test_every_mechanism_of_a_plan_has_its_price_and_no_more() -> None:
    asked = terms(
        after={"tuning": {"steps": 7}, "prior": {"share": 0.1}, "scores": {"share": 0.1}},
        choice={"kind": "gaussian", "times": 2, "share": 0.1},
        work={"kind": "plain", "first-batch": "full"},
    )
    plan = make_plan(profile(), asked)
    found = {(p.kind, p.server_round): p for p in prices_of(plan, 8)}
    assert {key: price.count for key, price in found.items()} == {
        ("update", 0): 2, ("update", 1): 1, ("tuning", 0): 1, ("choice", 0): 2, ("counts", 0): 1,
        ("scores", 0): 1,
    }  # fmt: skip
    # The full first batch costs more than a sampled round.
    assert found["update", 1].each > found["update", 0].each
    whole = by_library(plan.event(), 8)
    assert whole < price_of(plan, 8) < whole * (1 + 1e-8)


def test_choices_of_gumbel_noise_and_two_models_a_round_are_priced() -> None:
    z, steps = 3.0, (Steps(0.1, 10),) * 4
    one = Plan(1.0, 1e-5, z, 20.0, steps, 0.1, 1.0)
    two = Plan(
        1.0,
        1e-5,
        z,
        20.0,
        steps,
        0.1,
        1.0,
        models=2,
        releases=(("choice", PureSelections(0.2, 3)),),
    )
    assert price_of(two, 6) == pytest.approx(2 * price_of(one, 6) + 3 * of_pure(0.2, 6))
    gaussian = Plan(1.0, 1e-5, z, 20.0, steps, 0.1, 1.0, releases=(("choice", Gaussians(5.0, 3)),))
    assert price_of(gaussian, 6) == pytest.approx(price_of(one, 6) + 3 * 6 / (2 * 25))


def test_a_plan_without_noise_has_no_finite_price() -> None:
    assert price_of(Plan(math.inf, 1e-5, 0.0, 1.0, (Steps(0.1, 10),), 0.1, 1.0), 4) == math.inf


@settings(max_examples=80, deadline=None)
@given(
    epsilon=st.floats(0.05, 60), log_delta=st.floats(-10, -2), order=st.integers(2, 300),
    share=st.floats(0.01, 1),
)  # fmt: skip
def test_capacity_is_in_epsilon(epsilon: float, log_delta: float, order: int, share: float) -> None:
    delta = 10**log_delta
    held = capacity(order, epsilon, delta)
    if held > 0:
        assert compute_epsilon([order], [share * held], delta)[0] <= epsilon
        # The whole of it is used, but for what rounding takes.
        assert compute_epsilon([order], [held + 1e-8], delta)[0] > epsilon or held < 1e-4


@pytest.mark.parametrize(("epsilon", "least"), [(3.0, 7), (5.0, 20), (8.0, 44)])
def test_a_cap_admits_several_times_the_sum(epsilon: float, least: int) -> None:
    steps = [Steps(64 / 303, 100)]
    z, order = calibrate(steps, 1.0, 1e-6), order_for(epsilon, 1e-5)
    each = price_of(Plan(1.0, 1e-6, z, 64.0, tuple(steps), 0.1, 1.0), order)
    fit = math.floor(capacity(order, epsilon, 1e-5) / each)
    assert fit >= least
    # Not one of them too many, by a tighter accountant on its own.
    assert epsilon_of(event_of([Steps(64 / 303, 100 * fit)], z), 1e-5) <= epsilon


def test_small_runs_under_a_large_cap_fit_three_times_as_often_as_by_the_sum() -> None:
    steps = [Steps(64 / 303, 100)]
    z = calibrate(steps, 0.3, 1e-6)
    each = price_of(Plan(0.3, 1e-6, z, 64.0, tuple(steps), 0.1, 1.0), order := order_for(10, 1e-5))
    assert capacity(order, 10, 1e-5) / each >= 3 * (10 / 0.3)


def test_the_order_is_the_best_for_gaussian_mechanisms() -> None:
    for epsilon in (0.5, 3.0, 10.0):
        best = order_for(epsilon, 1e-5)
        fit = {a: capacity(a, epsilon, 1e-5) / of_gaussian(10.0, a) for a in range(2, 200)}
        assert max(fit, key=lambda order: fit[order]) == best


def test_a_cap_that_no_order_holds_names_the_smallest_that_one_does() -> None:
    with pytest.raises(AccountingError, match="the smallest is") as refused:
        order_for(1e-4, 1e-9)
    least = least_epsilon(1e-9)
    assert f"{least:.4g}" in str(refused.value)
    assert capacity(order_for(least, 1e-9), least, 1e-9) > 0


@pytest.mark.parametrize("wrong", [(1.0, 0.0), (1.0, 1.0), (math.nan, 1e-5), (1.0, math.nan)])
def test_no_capacity_of_what_is_no_cap(wrong: tuple[float, float]) -> None:
    with pytest.raises(AccountingError):
        capacity(4, *wrong)


def test_numbers_out_of_range_have_no_price() -> None:
    for z, q in ((math.nan, 0.1), (-1.0, 0.1), (1.0, 0.0), (1.0, 1.1)):
        with pytest.raises(AccountingError):
            price_of(Plan(1.0, 1e-5, z, 1.0, (Steps(q, 1),), 0.1, 1.0), 4)
    with pytest.raises(AccountingError):
        of_pure(0.0, 4)
