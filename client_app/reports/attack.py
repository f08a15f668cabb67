"""Bound on a membership-inference attack against everything a site released.

Computed from the charged plans of all runs of one unit together, by their trade-off curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.recompute import read_plan
from hdpfl_flower.privacy.accounting import interval_for
from hdpfl_flower.privacy.trade_off import true_positive_rate

FALSE_POSITIVES = (0.01, 0.1)
"""False-positive rates of the attacker."""


def found_by_an_attacker(plans: Sequence[ChargedPlan]) -> dict[str, float] | None:
    """Return false-positive rate → largest true-positive rate, both as shares of 1.

    Args:
        plans: of all runs of one unit.

    Returns:
        Upper bounds; 1 where a run adds no noise. None where a plan cannot be read.
    """
    import dp_accounting

    read = [read_plan(frozen) for frozen in plans]
    if not read or not all(read):
        return None
    known = [plan for plan in read if plan is not None]
    if any(plan.noise_multiplier == 0 for plan in known):
        return {f"{rate:g}": 1.0 for rate in FALSE_POSITIVES}
    epsilon = math.fsum(frozen.epsilon for frozen in plans if frozen.epsilon < math.inf)
    steps = sum(one.count for plan in known for one in plan.schedule)
    interval = interval_for(epsilon or 1.0, max(steps, 1))
    try:
        event = dp_accounting.ComposedDpEvent([plan.event() for plan in known])
        return {f"{rate:g}": true_positive_rate(event, rate, interval) for rate in FALSE_POSITIVES}
    except (HDPFLError, ArithmeticError, TypeError, ValueError):
        return None  # a plan that was altered: the assumptions checked say so


def in_words(found: dict[str, float], things: str = "records") -> str:
    """Return the rates in whole per cent, rounded up, of ``things``.

    >>> in_words({"0.01": 0.0312})
    'could identify at most 4 of 100 records in the data when wrongly accusing 1 of 100 others'
    """
    pairs = [(round(100 * float(rate)), _hundredths(share)) for rate, share in found.items()]
    (first, hit), *others = pairs
    text = (
        f"could identify at most {hit} of 100 {things} in the data when wrongly accusing {first} "
        "of 100 others"
    )
    more = (f"at most {share} of 100 when wrongly accusing {rate} of 100" for rate, share in others)
    return ", or ".join([text, *more])


def _hundredths(share: float) -> int:
    """Return a share in hundredths, rounded up beyond float64's own rounding."""
    return min(math.ceil(100 * share - 1e-9), 100)
