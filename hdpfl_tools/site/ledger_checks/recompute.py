"""Cost of a charged plan, recomputed by two accountants.

Only the frozen plan in the ledger is read: no profile, no cached noise multiplier. PLD gave the
charge; RDP is another proof of the same steps, older and looser.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from hdpfl_flower.errors import AccountingError, HDPFLError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.privacy.accounting import (
    Gaussians,
    PureSelections,
    epsilon_of,
    event_of,
    interval_for,
)
from hdpfl_flower.privacy.plan import Plan

if TYPE_CHECKING:
    import dp_accounting

_ORDERS = (*range(2, 256), 512, 1024, 2048, 4096)
"""Rényi orders: integers, for which dp-accounting and Opacus agree to 1e-9."""


@dataclass(frozen=True, repr=False)
class RecomputedEpsilon:
    """Upper bounds on a plan's ε at its δ, by two accountants.

    Attributes:
        pld: by privacy-loss distributions, pessimistic.
        rdp: by Rényi differential privacy.
    """

    pld: float
    rdp: float


def read_plan(frozen: ChargedPlan) -> Plan | None:
    """Return the plan in the ledger's text, or None if invalid.

    Raises:
        LedgerError: the plan is of a newer version.
    """
    with contextlib.suppress(AccountingError, TypeError):
        plan = frozen.read()
        # NaN fails both comparisons, and infinite noise is no mechanism.
        if plan.noise_multiplier >= 0 and math.isfinite(plan.noise_multiplier):
            return plan
    return None


def recompute_epsilon(frozen: ChargedPlan) -> RecomputedEpsilon | None:
    """Return ε of ``frozen`` at its charged δ; None if unreadable."""
    pld, rdp = recompute_by_pld(frozen), _recomputed(frozen, _by_rdp)
    return None if pld is None or rdp is None else RecomputedEpsilon(pld, rdp)


def recompute_by_pld(frozen: ChargedPlan) -> float | None:
    """Return :func:`recompute_epsilon` by PLD alone, many times faster."""
    return _recomputed(frozen, _by_pld)


def _recomputed(
    frozen: ChargedPlan, epsilon: Callable[[Plan, float, float], float]
) -> float | None:
    plan = read_plan(frozen)
    if plan is None:
        return None
    if plan.noise_multiplier == 0:
        return math.inf
    try:
        return epsilon(plan, frozen.epsilon, frozen.delta)
    except (HDPFLError, ArithmeticError, TypeError, ValueError):
        return None


def epsilon_by_rdp(event: dp_accounting.DpEvent, delta: float) -> float:
    """Return ε of ``event`` at ``delta`` by RDP, add/remove of a record; ``inf`` without bound.

    Raises:
        AccountingError: the accountant returns no number.
    """
    from dp_accounting.rdp import RdpAccountant

    try:
        epsilon = float(RdpAccountant(orders=_ORDERS).compose(event).get_epsilon(delta))
    except OverflowError:
        return math.inf
    if math.isnan(epsilon):
        raise AccountingError("the accountant returns no epsilon for these steps")
    return epsilon


@lru_cache(maxsize=4096)
def _by_pld(plan: Plan, epsilon: float, delta: float) -> float:
    # Any grid gives an upper bound; the charged ε was calibrated on this one.
    finite = epsilon if 0 < epsilon < math.inf else 1.0
    interval = interval_for(finite, sum(steps.count for steps in plan.schedule))
    return epsilon_of(plan.event(), delta, interval)


@lru_cache(maxsize=4096)
def _by_rdp(plan: Plan, _: float, delta: float) -> float:
    event = plan.event()
    if any(isinstance(release, PureSelections) for release in plan.beside):
        # A pure ε is an RDP of α·ε²/2 (Bun and Steinke, TCC 2016), like a Gaussian of 1/ε.
        as_gaussians = [
            Gaussians(1 / release.epsilon, release.count)
            if isinstance(release, PureSelections)
            else release
            for release in plan.beside
        ]
        event = event_of(plan.schedule, plan.noise_multiplier, as_gaussians)
    return epsilon_by_rdp(event, delta)
