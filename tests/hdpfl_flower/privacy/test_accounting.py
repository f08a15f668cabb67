"""What noise costs: closed forms, two other accountants, published vectors, order and refusals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.optimize import brentq

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy import accounting
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of, interval_for


def epsilon(schedule: list[Steps], z: float, delta: float, around: float) -> float:
    """ε of ``schedule`` on the grid that a target near ``around`` gets."""
    interval = interval_for(around, sum(steps.count for steps in schedule))
    return epsilon_of(event_of(schedule, z), delta, interval)


def gaussian_delta(eps: float, sigma: float) -> float:
    """The analytic Gaussian mechanism (Balle and Wang, ICML 2018, Theorem 8), sensitivity 1."""
    with mpmath.workdps(40):
        eps, sigma = mpmath.mpf(eps), mpmath.mpf(sigma)
        inside, outside = 1 / (2 * sigma) - eps * sigma, -1 / (2 * sigma) - eps * sigma
        return float(mpmath.ncdf(inside) - mpmath.exp(eps) * mpmath.ncdf(outside))


def gaussian_sigma(eps: float, delta: float) -> float:
    return float(brentq(lambda s: gaussian_delta(eps, s) - delta, 1e-3, 1e3, xtol=1e-13))


def gaussian_epsilon(sigma: float, delta: float) -> float:
    return float(brentq(lambda e: gaussian_delta(e, sigma) - delta, 1e-6, 100, xtol=1e-13))


def sampled_gaussian_delta(eps: float, sigma: float, q: float) -> float:
    """The hockey-stick divergence of one Poisson-sampled step, the larger of add and remove.

    With P = (1−q)·N(0, σ²) + q·N(1, σ²) and Q = N(0, σ²), dP/dQ rises with x, so each divergence
    is a difference of tails beyond the place where dP/dQ = e^ε, or e^−ε.
    """
    with mpmath.workdps(40):
        eps, sigma, q = mpmath.mpf(eps), mpmath.mpf(sigma), mpmath.mpf(q)

        def place(ratio: mpmath.mpf) -> mpmath.mpf:
            return sigma**2 * mpmath.log((ratio - 1 + q) / q) + mpmath.mpf(1) / 2

        def mixture(x: mpmath.mpf, sign: int) -> mpmath.mpf:
            return (1 - q) * mpmath.ncdf(sign * x / sigma) + q * mpmath.ncdf(sign * (x - 1) / sigma)

        x = place(mpmath.exp(eps))
        remove = mixture(x, -1) - mpmath.exp(eps) * mpmath.ncdf(-x / sigma)
        add = mpmath.mpf(0)
        if mpmath.exp(-eps) > 1 - q:
            x = place(mpmath.exp(-eps))
            add = mpmath.ncdf(x / sigma) - mpmath.exp(eps) * mixture(x, 1)
        return float(max(add, remove))


# Closed forms.


def test_one_gaussian_release_has_the_closed_form() -> None:
    sigma = gaussian_sigma(1, 1e-6)
    assert sigma == pytest.approx(4.224679, abs=5e-7)
    assert sigma <= calibrate([Steps(1, 1)], 1, 1e-6) <= 1.003 * sigma


@pytest.mark.parametrize(("target", "delta"), [(0.1, 1e-5), (1, 1e-9), (8, 1e-5)])
def test_full_batch_steps_are_one_gaussian(target: float, delta: float) -> None:
    """k Gaussian steps compose to one with z/√k: here the closed form covers many steps."""
    sigma = gaussian_sigma(target, delta)
    for count in (7, 400):
        z = calibrate([Steps(1, count)], target, delta)
        assert math.sqrt(count) * sigma <= z <= 1.003 * math.sqrt(count) * sigma


@pytest.mark.parametrize(
    ("q", "sigma", "eps"),
    [(0.01, 0.6, 2), (0.1, 0.8, 0.5), (0.1, 0.8, 3), (0.5, 1, 1), (0.9, 2, 0.2), (1, 1.5, 4)],
)
def test_one_sampled_step_has_the_closed_form(q: float, sigma: float, eps: float) -> None:
    delta = sampled_gaussian_delta(eps, sigma, q)
    if q == 1:
        assert delta == pytest.approx(gaussian_delta(eps, sigma), rel=1e-12)
    assert delta > 1e-10
    ours = epsilon_of(event_of([Steps(q, 1)], sigma), delta, 1e-3 * eps)
    assert eps * (1 - 1e-9) <= ours <= 1.001 * eps


def test_rdp_needs_more_noise_for_one_release() -> None:
    """Rényi's answer to (1, 1e-6) is 4.530877117, whose true ε is 0.9274 (both closed forms)."""
    sigma, log_delta = 4.530877117, math.log(1e-6)
    orders = [1 + step / 1000 for step in range(1, 100_000)]
    rdp = min(
        a / (2 * sigma**2) + math.log1p(-1 / a) - (log_delta + math.log(a)) / (a - 1)
        for a in orders
    )
    assert rdp == pytest.approx(1, abs=1e-6)
    truth = gaussian_epsilon(sigma, 1e-6)
    assert truth == pytest.approx(0.9274, abs=5e-5)
    assert truth <= epsilon([Steps(1, 1)], sigma, 1e-6, 1) <= 1.001 * truth


# Other accountants, and the vectors of docs/project/decisions.md: σ = 1.5, q = .04, δ = 1e-5.


def test_rdp_vector_from_our_event_and_from_opacus() -> None:
    from dp_accounting.rdp import RdpAccountant

    opacus = RDPAccountant()
    opacus.history = [(1.5, 0.04, 2250)]
    assert opacus.get_epsilon(1e-5) == pytest.approx(7.32911117, abs=1e-8)
    orders = list(range(2, 64))
    ours = RdpAccountant(orders).compose(event_of([Steps(0.04, 2250)], 1.5)).get_epsilon(1e-5)
    assert ours == pytest.approx(opacus.get_epsilon(1e-5, alphas=orders), rel=1e-9)


@pytest.mark.parametrize(("steps", "upper"), [(2249, 6.7773957), (2250, 6.7791321)])
def test_prv_vectors_bracket_ours(steps: int, upper: float) -> None:
    prv = PRVAccountant()
    prv.history = [(1.5, 0.04, steps)]
    assert prv.get_epsilon(1e-5) == pytest.approx(upper, abs=1e-7)
    assert 0 <= upper - epsilon([Steps(0.04, steps)], 1.5, 1e-5, 7) <= 0.012


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning:opacus")
@pytest.mark.parametrize(
    "history",
    [
        [(1.1, 0.01, 5000)],
        [(4.0, 0.3, 200)],
        [(8.0, 1.0, 1), (2.0, 0.02, 3000)],
        [(0.8, 0.004, 400), (0.8, 0.05, 10), (0.8, 0.2, 1)],
    ],
)
def test_ours_lies_between_the_bounds_of_prv(history: list[tuple[float, float, int]]) -> None:
    """PRV proves a lower bound too: an accountant that under-reports falls below it."""
    from dp_accounting import ComposedDpEvent

    accountant = PRVAccountant()
    accountant.history = history
    prv = accountant._get_dprv(eps_error=0.01, delta_error=1e-8)
    low, _, high = prv.compute_epsilon(1e-5, 1e-8, 0.01)
    event = ComposedDpEvent([event_of([Steps(q, count)], z) for z, q, count in history])
    ours = epsilon_of(event, 1e-5, interval_for(high, sum(count for _, _, count in history)))
    assert low <= ours <= high


# Order.

SCHEDULES = st.lists(
    st.builds(Steps, st.sampled_from([0.002, 0.05, 0.3, 1.0]), st.integers(1, 300)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=6)
@given(SCHEDULES, st.floats(1, 6), st.sampled_from([1e-9, 1e-5, 1e-3]), st.floats(1.1, 3))
def test_cost_is_monotone(schedule: list[Steps], z: float, delta: float, factor: float) -> None:
    cost = functools.partial(epsilon_of, interval=1e-2)
    here = cost(event_of(schedule, z), delta)
    slack = 1e-9 + 1e-6 * here
    more_steps = [*schedule, Steps(0.3, 5)]
    denser = [Steps(min(1.0, s.sampling_prob * factor), s.count) for s in schedule]
    assert cost(event_of(more_steps, z), delta) >= here - slack
    assert cost(event_of(denser, z), delta) >= here - slack
    assert cost(event_of(schedule, z * factor), delta) <= here + slack
    assert cost(event_of(schedule, z), delta * factor) <= here + slack


@pytest.mark.parametrize(
    ("schedule", "target", "delta"),
    [([Steps(1, 3)], 0.3, 1e-7), ([Steps(0.2, 300)], 1, 1e-4), ([Steps(1, 30)], 6, 1e-5)],
)
def test_noise_is_monotone(schedule: list[Steps], target: float, delta: float) -> None:
    z = calibrate(schedule, target, delta)
    assert calibrate(schedule, 1.2 * target, delta) < z < calibrate(schedule, target, delta / 10)
    assert calibrate([*schedule, Steps(0.3, 200)], target, delta) > 0.9994 * z
    assert epsilon(schedule, z, delta, target) <= target


def test_a_mixed_schedule_has_no_order_and_costs_at_least_each_part() -> None:
    """The two searches stop within 5e-4 of the least noise, hence the slack."""
    target = 4
    parts = [Steps(1, 1), Steps(0.02, 3000), Steps(0.2, 30)]
    z = calibrate(parts, target, 1e-5)
    assert calibrate(parts[::-1], target, 1e-5) == z
    assert calibrate([parts[1], *parts, Steps(0.5, 0)][1:], target, 1e-5) == z
    split = [Steps(0.02, 1000), parts[2], Steps(0.02, 2000), parts[0]]
    assert calibrate(split, target, 1e-5) == z
    assert z >= 0.9995 * max(calibrate([part], target, 1e-5) for part in parts)
    # ε of the whole lies between the largest part's and the sum of the parts' (δ split).
    whole = epsilon(parts, z, 1e-5, target)
    assert whole >= max(epsilon([part], z, 1e-5, target) for part in parts)
    assert whole <= sum(epsilon([part], z, 1e-5 / 3, target) for part in parts)


# Edges and refusals.


def test_no_privacy_and_no_steps_need_no_noise() -> None:
    assert calibrate([Steps(0.1, 100)], math.inf, 1e-5) == 0
    assert calibrate([], 1, 1e-5) == 0
    assert calibrate([Steps(0.1, 0)], 1, 1e-5) == 0
    assert epsilon_of(event_of([], 1.0), 1e-5, 1e-4) == 0


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: calibrate([Steps(0.1, 1)], 0, 1e-5), "epsilon"),
        (lambda: calibrate([Steps(0.1, 1)], -1, 1e-5), "epsilon"),
        (lambda: calibrate([Steps(0.1, 1)], -math.inf, 1e-5), "epsilon"),
        (lambda: calibrate([Steps(0.1, 1)], math.nan, 1e-5), "epsilon"),
        (lambda: calibrate([Steps(0.1, 1)], 1, 9e-11), "delta"),
        (lambda: calibrate([Steps(0.1, 1)], 1, 1.0), "delta"),
        (lambda: calibrate([Steps(0.1, 1)], 1, math.nan), "delta"),
        (lambda: calibrate([Steps(1.0001, 1)], 1, 1e-5), "sampling probability"),
        (lambda: calibrate([Steps(0.0, 1)], 1, 1e-5), "sampling probability"),
        (lambda: calibrate([Steps(math.nan, 1)], 1, 1e-5), "sampling probability"),
        (lambda: calibrate([Steps(0.1, -1)], 1, 1e-5), "count"),
        (lambda: calibrate([Steps(0.1, 5), Steps(0.1, -1)], 1, 1e-5), "count"),
        (lambda: event_of([Steps(0.1, 1)], 0.0), "noise multiplier"),
        (lambda: event_of([Steps(0.1, 1)], math.nan), "noise multiplier"),
        (lambda: epsilon_of(event_of([Steps(0.1, 1)], 1.0), 9e-11, 1e-4), "delta"),
        (lambda: epsilon_of(event_of([Steps(0.1, 1)], 1.0), math.nan, 1e-4), "delta"),
        (lambda: calibrate([Steps(1, 1)], 1e9, 1e-5), "epsilon"),
        (lambda: calibrate([Steps(1, 10**6)], 1e-9, 1e-5), "epsilon"),
    ],
)
def test_refusals_name_what_is_wrong(call: Callable[[], object], key: str) -> None:
    with pytest.raises(AccountingError, match=key) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_large_epsilon_is_cheap_to_calibrate() -> None:
    """On a grid of 1e-3 this took 23 GB; only the size of the grid is asked for here."""
    sigma = gaussian_sigma(300, 1e-6)
    assert sigma <= calibrate([Steps(1, 1)], 300, 1e-6) <= 1.003 * sigma
    assert interval_for(3000, 1) == pytest.approx(0.3)
    assert calibrate([Steps(0.04, 2250)], 1e5, 1e-5) > 0


def test_a_fixed_interval_is_a_trap(monkeypatch: pytest.MonkeyPatch) -> None:
    """ε = .15, b = 16, N = 2,400, 30,000 steps, δ = 1e-4 (docs/project/decisions.md)."""
    schedule = (Steps(16 / 2400, 30_000),)
    assert calibrate(schedule, 0.15, 1e-4) <= 20.05
    for interval, z in ((1e-3, 46.97), (1e-4, 19.98)):
        monkeypatch.setattr(accounting, "interval_for", lambda *_, fixed=interval: fixed)
        assert accounting._search(schedule, 0.15, 1e-4) == pytest.approx(z, rel=1e-3)
