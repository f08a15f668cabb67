"""Bound on a membership-inference attack against everything a site released.

Computed from the charged plans of all runs of one unit together, by their trade-off curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.privacy.accounting import interval_for
from hdpfl_tools.measures.trade_off import true_positive_rate
from hdpfl_tools.site.ledger_checks.recompute import read_plan

FALSE_POSITIVES = (0.01, 0.1)
"""False-positive rates of the attacker."""


def attack_rates(charged: Sequence[ChargedPlan]) -> dict[str, float] | None:
    """Return false-positive rate → largest true-positive rate, both as shares of 1.

    Args:
        charged: plans of all runs of one unit.

    Returns:
        Upper bounds; 1 where a run adds no noise. None where a plan cannot be read.
    """
    import dp_accounting

    plans = [plan for frozen in charged if (plan := read_plan(frozen)) is not None]
    if not plans or len(plans) < len(charged):
        return None
    if any(plan.noise_multiplier == 0 for plan in plans):
        return {f"{rate:g}": 1.0 for rate in FALSE_POSITIVES}
    epsilon = math.fsum(frozen.epsilon for frozen in charged if frozen.epsilon < math.inf)
    steps = sum(steps.count for plan in plans for steps in plan.schedule)
    interval = interval_for(epsilon or 1.0, max(steps, 1))
    try:
        event = dp_accounting.ComposedDpEvent([plan.event() for plan in plans])
        return {f"{rate:g}": true_positive_rate(event, rate, interval) for rate in FALSE_POSITIVES}
    except (HDPFLError, ArithmeticError, TypeError, ValueError):
        return None  # a plan that was altered: the assumptions checked say so
