"""Rényi filter of a ledger: one order, its capacity for (ε, δ), and a plan's divergence at it.

Feldman and Zrnic (Individual Privacy Accounting via a Rényi Filter, NeurIPS 2021): mechanisms that
are chosen adaptively, one after the other, have in all a Rényi divergence of order α within B, if
each of them, given all that came before, has one of at most ρ and is run only where Σρ stays
within B. Here a mechanism is one release of a run. Its noise and its price are fixed when it is
reserved, so that concurrent runs are releases in the order of their reservations, and a run that
ends early costs its reserved releases. The order is fixed when the ledger is made: of several
orders the best one must not be chosen afterwards.

Orders are whole numbers. There the divergence of a Poisson-sampled Gaussian is a finite sum of
positive terms (Mironov, Talwar and Zhang, arXiv 1908.10530), computed here to 12 digits and rounded
up; dp-accounting computes it again in the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hdpfl_flower.errors import AccountingError

if TYPE_CHECKING:
    from hdpfl_flower.privacy.accounting import ExtraRelease
    from hdpfl_flower.privacy.plan import Plan

MOST_ORDER = 1024
_UP = 1 + 1e-9
"""Factor on a computed divergence; its float64 error is below 1e-11 of it."""
DOWN = 1e-9
"""Taken off a capacity, whose float64 error is below 1e-12."""


@dataclass(frozen=True)
class Price:
    """Rényi divergence of one kind of release in a plan.

    Attributes:
        kind: of release.
        server_round: the only round of it; 0: any other round.
        each: divergence of one release at the ledger's order, rounded up.
        count: releases that the plan pays for.
    """

    kind: str
    server_round: int
    each: float
    count: int


def capacity(order: int, epsilon: float, delta: float) -> float:
    """Return the largest divergence of ``order`` that is (ε, δ)-DP, rounded down; ≤ 0: none.

    Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy (NeurIPS 2020),
    Proposition 12: ε = D + log(1 − 1/α) − (log δ + log α)/(α − 1).

    Raises:
        AccountingError: δ is not in (0, 1), or ε is no number.
    """
    if not 0 < delta < 1 or math.isnan(epsilon) or order < 2:
        raise AccountingError("a Rényi filter needs an epsilon, a delta in (0, 1), an order >= 2")
    return epsilon - zero_epsilon(order, delta) - DOWN


def zero_epsilon(order: int, delta: float) -> float:
    """Return ε of a divergence of 0."""
    return math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def prices_of(plan: Plan, order: int) -> tuple[Price, ...]:
    """Return the divergence at ``order`` of each kind of release that ``plan`` pays for.

    Rounds of the last one's steps and noise have one price, any other has its own. A round of two
    models (a private personal one) has that of both.

    Raises:
        AccountingError: a number of the plan is out of range.
    """
    from hdpfl_flower.privacy.accounting import Steps

    def of_steps(steps: Steps, times: int) -> float:
        noise = plan.noise_multiplier * steps.noise_factor
        return _of_steps(steps.sampling_prob, noise, order, steps.count * times)

    last = plan.steps[-1]
    prices = [Price("update", 0, of_steps(last, plan.models), plan.steps.count(last))]
    prices += [
        Price("update", server_round, of_steps(steps, plan.models), 1)
        for server_round, steps in enumerate(plan.steps, start=1)
        if steps != last
    ]
    for kind, cost in plan.releases:
        if isinstance(cost, Steps):
            prices.append(Price(kind, 0, of_steps(cost, 1), 1))
        elif cost.count:
            prices.append(Price(kind, 0, _of_one(cost, order), cost.count))
    return tuple(prices)


def of_gaussian(noise_multiplier: float, order: int) -> float:
    """Return the divergence of one Gaussian release, rounded up; ∞ without noise."""
    return _of_steps(1.0, noise_multiplier, order, 1)


def _of_one(release: ExtraRelease, order: int) -> float:
    from hdpfl_flower.privacy.accounting import Gaussians

    if isinstance(release, Gaussians):
        return of_gaussian(release.noise_multiplier, order)
    return of_pure(release.epsilon, order)


def of_pure(epsilon: float, order: int) -> float:
    """Return the divergence of a release of pure ``epsilon``, rounded up.

    As randomized response, from which the release follows by post-processing (Kairouz, Oh and
    Viswanath, ICML 2015): with p = e^ε/(1 + e^ε), p^α·(1−p)^(1−α) + (1−p)^α·p^(1−α) is
    1 + (e^((α−1)ε) − 1)·(1 − e^(−αε))/(1 + e^(−ε)).

    >>> of_pure(0.1, 8) < 8 * 0.1**2 / 2, of_pure(9.0, 8) < 9.0
    (True, True)
    """
    if not epsilon > 0:
        raise AccountingError("the epsilon of pure releases must be positive")
    if epsilon == math.inf:
        return math.inf
    # The logarithm of the term beside 1: it does not overflow.
    log_more = (
        _log_expm1((order - 1) * epsilon)
        + math.log(-math.expm1(-order * epsilon))
        - math.log1p(math.exp(-epsilon))
    )
    # Never more than ε itself, whichever way it is rounded.
    return min(_up(_log1p_exp(log_more) / (order - 1)), epsilon)


@lru_cache(maxsize=4096)
def _of_steps(q: float, z: float, order: int, count: int) -> float:
    """Return the divergence of ``count`` Poisson-sampled Gaussian steps, rounded up."""
    if not 0 < q <= 1 or count < 0 or not z >= 0:
        raise AccountingError("a step needs a probability in (0, 1], and noise that is a number")
    if z == 0:
        return math.inf
    if q == 1:
        return _up(count * order / (2 * z * z))
    # Σ C(α, i)·q^i·(1−q)^(α−i)·e^((i²−i)/2z²) less Σ C(α, i)·q^i·(1−q)^(α−i), which is 1: a sum of
    # positive terms, also where the divergence is tiny.
    logs = [
        math.log(math.comb(order, i))
        + i * math.log(q)
        + (order - i) * math.log1p(-q)
        + _log_expm1((i * i - i) / (2 * z * z))
        for i in range(2, order + 1)
    ]
    most = max(logs)
    if most == -math.inf:  # noise so large that float64 has no divergence
        return _up(0.0)
    log_more = most + math.log(math.fsum(math.exp(term - most) for term in logs))
    return _up(count * _log1p_exp(log_more) / (order - 1))


def _log_expm1(x: float) -> float:
    """Return log(e^x − 1) of x > 0, without overflow."""
    return x + math.log(-math.expm1(-x)) if x > 0 else -math.inf


def _log1p_exp(x: float) -> float:
    """Return log(1 + e^x), without overflow."""
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def _up(value: float) -> float:
    return math.nextafter(value * _UP, math.inf)
