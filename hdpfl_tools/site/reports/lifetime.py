"""Rest of a ledger's promise: Rényi filter, or sums of ε and δ."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from hdpfl_flower.config.profile import Budget, Profile
from hdpfl_flower.errors import AccountingError, HDPFLError, LedgerError
from hdpfl_flower.ledger.account import Account, as_fraction, filter_capacity, reserved
from hdpfl_flower.ledger.renyi import (
    DOWN,
    MOST_ORDER,
    Price,
    capacity,
    of_gaussian,
    prices_of,
    zero_epsilon,
)
from hdpfl_flower.privacy.plan import Plan
from hdpfl_tools.site.reports.formatting import ceil_digits, floor_digits, per_cent
from hdpfl_tools.site.reports.ledger_view import LedgerView
from hdpfl_tools.site.reports.rendering import lines
from hdpfl_tools.site.reports.units import sums_of

Amount = tuple[float, float]
"""(ε, δ)."""
Exact = Fraction | float
RENYI, SUM = "renyi", "sum"
MANY = 1_000_000
"""Runs that fit under an infinite cap."""


@dataclass(frozen=True, repr=False)
class BudgetStatus:
    """Where the budget stands.

    Attributes:
        cap: (ε, δ) that holds for all releases: the ledger's cap, or the profile's [budget] where
            that is lower and a filter's charges fit under it.
        spent: (Σε, Σδ) of the charged runs, rounded up, also under a filter.
        left: of the cap after that sum, rounded down.
        order: of the Rényi filter; 0: the sum counts.
        full: share of the promise that is taken, rounded up; 1: nothing fits.
    """

    cap: Amount
    spent: Amount
    left: Amount
    order: int
    full: float


@dataclass(frozen=True, repr=False)
class RunsThatFit:
    """Runs and rounds that still fit under the promise.

    Attributes:
        runs: whole runs like it.
        rounds: of its rounds, at its noise, where no run fits whole; 0 under the sum, which
            charges a run whole.
        by_sum: runs that the sum of ε and δ would have admitted.
        share: of the whole promise that one run takes, rounded up.
    """

    runs: int
    rounds: int
    by_sum: int
    share: float


def budget_status(account: Account, budget: Budget | None) -> BudgetStatus:
    """Return the budget's state under the lower of cap and ``budget``.

    Without a ``budget``, where no profile is at hand, the cap counts.
    """
    cap, left = _cap(account, budget), _left_of_sum(account, budget)
    spent, rest = account.spent(), (_float_down(left[0]), _float_down(left[1]))
    if account.order:
        room, taken = filter_capacity(account.order, cap), sum(account.divergences().values())
        full = _of(taken, room)
        if taken > room:  # what has left costs more than a budget that was lowered since
            cap = account.cap_epsilon, account.cap_delta
    else:
        full = max(_of(amount, whole) for amount, whole in zip(spent, cap, strict=True))
    return BudgetStatus(cap, spent, rest, account.order, full)


def shares_of_runs(account: Account, budget: Budget | None) -> dict[str, float]:
    """Return each charged run's share of a Rényi filter, rounded up; empty under the sum."""
    if not account.order:
        return {}
    room = filter_capacity(account.order, _cap(account, budget))
    return {run: _of(taken, room) for run, taken in account.divergences().items()}


def fit_of(
    account: Account, profile: Profile, cost: Amount, plan: Plan | None = None
) -> RunsThatFit:
    """Return the part of a run that fits, by exact sums.

    Args:
        account: of the ledger.
        profile: its lower [budget] and its ``policy.runs`` count.
        cost: the run's (ε, δ).
        plan: of the run; None: of one Gaussian release of that cost, which stands for any run.
    """
    most = math.inf
    if profile.policy.runs:
        most = max(0, profile.policy.runs - len(account.runs))
    cap, lefts = _cap(account, profile.budget), _left_of_sum(account, profile.budget)
    by_sum = int(min(most, *map(_times, lefts, cost)))
    if not account.order:
        return RunsThatFit(by_sum, 0, by_sum, max(map(_of, cost, cap)))
    prices = prices_of(plan, account.order) if plan else _of_one_release(account.order, *cost)
    room = filter_capacity(account.order, cap)
    if math.isinf(room):
        return RunsThatFit(int(min(most, MANY)), 0, by_sum, 0.0)
    price, taken = reserved(prices), sum(account.divergences().values(), Fraction(0))
    left = Fraction(0)
    if not math.isinf(taken):
        left = max(left, as_fraction(room) - Fraction(taken))
    runs = int(min(most, 0 if math.isinf(price) else left // price))
    rounds = _rounds(left, prices) if plan and most and not runs else 0
    return RunsThatFit(runs, rounds, by_sum, _of(price, room))


def runs_that_fit(
    account: Account, profile: Profile, cost: Amount, plan: Plan | None = None
) -> int:
    """Return how many more runs like it fit; arguments as :func:`fit_of`."""
    return fit_of(account, profile, cost, plan).runs


def fit_of_next(account: Account, profile: Profile) -> RunsThatFit:
    """Return the part of the next run that fits, if it is like the run that was charged last.

    Before any, a run of one Gaussian release at [run] stands for it.
    """
    for last in list(account.plans.values())[-1:]:
        with contextlib.suppress(HDPFLError, LookupError, TypeError, ValueError):
            return fit_of(account, profile, (last.epsilon, last.delta), last.read())
    return fit_of(account, profile, (profile.run.epsilon, profile.run.delta))


def empty_ledger(site: Profile) -> LedgerView:
    """Return the ledger that ``hdpfl-site ledger --init`` would create."""
    try:
        order = order_of_new(site)
    except LedgerError:
        order = 0
    budget = site.budget
    return LedgerView([], Account(budget.epsilon, budget.delta, order))


def order_of_new(site: Profile, composition: str = "") -> int:
    """Return the order of a new ledger's Rényi filter; 0: the sum.

    Args:
        site: its [budget] is the cap.
        composition: ``renyi``, ``sum``, or empty: the one that admits more runs like [run].

    Raises:
        LedgerError: no order holds the cap.
    """
    if composition == SUM or (not composition and math.isinf(site.budget.epsilon)):
        return 0
    cap = site.budget.epsilon, site.budget.delta
    try:
        order = order_for(*cap)
    except AccountingError:
        raise LedgerError(
            f"no Rényi filter can hold an epsilon of {site.budget.epsilon:g} at this delta; the "
            f"smallest is {least_epsilon(site.budget.delta):g}; raise 'budget.epsilon', or: "
            "--composition sum"
        ) from None
    by_sum, by_filter = admitted(cap, (site.run.epsilon, site.run.delta), order)
    return order if composition == RENYI or by_filter >= by_sum else 0


def admitted(cap: Amount, run: Amount, order: int) -> tuple[int, int]:
    """Return the runs a cap admits: by sum, and by filter of ``order``."""
    by_sum = int(min(map(_times, (_left(amount, []) for amount in cap), run)))
    room, price = filter_capacity(order, cap), reserved(_of_one_release(order, *run))
    if math.isinf(room) or math.isinf(price):
        return by_sum, by_sum
    return by_sum, int(as_fraction(room) // price)


def promise_lines(now: BudgetStatus, account: Account, coming: str = "") -> list[str]:
    """Return the promise of a Rényi filter, its units if several, and its use, in words.

    Args:
        now: the budget's state.
        account: of the ledger.
        coming: unit of a run that is not charged yet; empty: there is none.
    """
    units = sums_of(account)
    if coming not in ("", *(row["unit"] for row in units)):
        units.append({"unit": coming, "runs": []})
    return lines("promise", now=now, units=units, several=len(units) > 1)


def spent_by_unit(account: Account) -> list[str]:
    """Return the sums of the runs of each unit, in words; empty for a single unit.

    The cap counts all runs, whatever their unit; the promise for a unit counts its runs alone, and
    those that protect all records.
    """
    units = sums_of(account)
    return lines("sums", units=units) if len(units) > 1 else []


def fit_line(now: BudgetStatus, fit: RunsThatFit) -> str:
    """Return the runs that still fit, by the filter and by the sum."""
    return (
        f"such a run takes {per_cent(fit.share)}; {fit.runs} such runs still fit (by the sum of ε "
        f"and δ, {ceil_digits(now.spent[0])} of {floor_digits(now.cap[0])}: {fit.by_sum})"
    )


def rounds_that_fit(fit: RunsThatFit, rounds: int) -> str:
    """Return the rounds of a run that fit; empty: unknown."""
    return (
        f"; {fit.rounds} of its {rounds} rounds would fit with the same noise" if fit.rounds else ""
    )


@lru_cache(maxsize=64)
def _of_one_release(order: int, epsilon: float, delta: float) -> tuple[Price, ...]:
    """Return the price of one Gaussian release that costs (ε, δ)."""
    return (Price("update", 0, of_gaussian(noise_of_one(epsilon, delta), order), 1),)


def noise_of_one(epsilon: float, delta: float) -> float:
    """Return the least noise multiplier of one Gaussian release at (ε, δ), rounded up; 0 at ∞.

    Balle and Wang, Improving the Gaussian Mechanism (ICML 2018), Theorem 8. It does not use
    dp-accounting: that import takes most of a second.
    """
    if math.isinf(epsilon):
        return 0.0
    low, high, grown = 1e-3, 1e6, math.exp(min(epsilon, 700.0))
    while high > low * (1 + 1e-9):
        z = math.sqrt(low * high)
        signal, loss = 0.5 / z, epsilon * z
        fits = _normal(signal - loss) - grown * _normal(-signal - loss) <= delta
        low, high = (low, z) if fits else (z, high)
    return high


def _normal(x: float) -> float:
    """Return the probability that a standard normal is at most x."""
    return math.erfc(-x / math.sqrt(2)) / 2


def _rounds(left: Fraction, prices: Sequence[Price]) -> int:
    """Return the rounds, from the first on, that fit beside other releases."""
    updates = {price.server_round: price for price in prices if price.kind == "update"}
    rest = left - reserved(price for price in prices if price.kind != "update")
    rounds = sum(price.count for price in updates.values())
    for server_round in range(1, rounds + 1):
        rest -= reserved([replace(updates.get(server_round, updates[0]), count=1)])
        if rest < 0:
            return server_round - 1
    return rounds


def _cap(account: Account, budget: Budget | None) -> Amount:
    cap = account.cap_epsilon, account.cap_delta
    return cap if budget is None else (min(cap[0], budget.epsilon), min(cap[1], budget.delta))


def _left_of_sum(account: Account, budget: Budget | None) -> tuple[Exact, Exact]:
    """Return the exact rest of the lower cap after Σε and Σδ."""
    cap, plans = _cap(account, budget), account.plans.values()
    return (
        _left(cap[0], [plan.epsilon for plan in plans]),
        _left(cap[1], [plan.delta for plan in plans]),
    )


def _left(cap: float, costs: list[float]) -> Exact:
    if math.isinf(cap):
        return math.inf
    if math.inf in costs:
        return Fraction(0)
    # Exact, as the ledger adds up: floats could show room for a run that it then refuses.
    return max(Fraction(0), as_fraction(cap) - sum(map(as_fraction, costs)))


def _times(left: Exact, cost: float) -> float:
    """Return how often ``cost`` fits into ``left``."""
    if isinstance(left, float):
        return MANY
    return 0 if math.isinf(cost) else left // as_fraction(cost)


def _of(amount: Exact, whole: float) -> float:
    """Return the share of ``amount`` in ``whole``, 0 to 1."""
    if math.isinf(whole) or not amount:
        return 0.0
    return min(1.0, float(amount) / whole) if whole else 1.0


def _float_down(number: Exact) -> float:
    value = float(number)
    if isinstance(number, float) or as_fraction(value) <= number:
        return value
    # The nearest float may lie above, and the rest of a budget is rounded down.
    return math.nextafter(value, 0)


def order_for(epsilon: float, delta: float) -> int:
    """Return the order at which a cap of (ε, δ) admits most Gaussian mechanisms.

    The divergence of a Gaussian mechanism is proportional to the order, so it is the order of the
    largest capacity divided by it. It follows from the cap alone.

    Raises:
        AccountingError: no order has a capacity; names the smallest ε that has.

    >>> [order_for(epsilon, 1e-5) for epsilon in (1.0, 3.0, 5.0, 8.0)]
    [18, 8, 5, 4]
    """
    if epsilon == math.inf:
        return 2
    orders = range(2, MOST_ORDER + 1)
    best = max(orders, key=lambda order: capacity(order, epsilon, delta) / order)
    if not capacity(best, epsilon, delta) > 0:
        raise AccountingError(
            f"no Rényi order holds this epsilon at this delta; the smallest is "
            f"{least_epsilon(delta):.4g}, or create the ledger with composition 'sum'"
        )
    return best


def least_epsilon(delta: float) -> float:
    """Return an ε from which on some order has a capacity at δ, rounded up at four digits."""
    least = (
        max(min(zero_epsilon(order, delta) for order in range(2, MOST_ORDER + 1)), 1e-6) + 2 * DOWN
    )
    digits = 3 - math.floor(math.log10(least))
    return math.ceil(least * 10.0**digits) / 10.0**digits
