"""Bound on a membership test: true-positive by false-positive rate.

A guess from a release whether a unit was among the data is right about at most
TPR ≤ e^ε·FPR + δ(ε) of the members, for every ε at once (Kairouz, Oh and Viswanath, ICML 2015;
Dong, Roth and Su, Gaussian Differential Privacy, JRSS B 2022). With δ known at every ε that is the
mechanism's trade-off curve, which says more than one pair of ε and δ.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hdpfl_flower.errors import AccountingError

if TYPE_CHECKING:
    import dp_accounting

_EPSILONS, _LEAST = 2_000, -10.0
"""Values of ε at which the bound is taken, and the least: any set of them bounds the rate."""


def true_positive_rate(
    event: dp_accounting.DpEvent, false_positive_rate: float, interval: float
) -> float:
    """Return a test's largest true-positive rate against ``event``.

    Args:
        event: the mechanisms of all runs of one unit.
        false_positive_rate: share of the others that it takes for members, in (0, 1).
        interval: width of the PLD's grid of privacy losses.

    Returns:
        An upper bound from pessimistic privacy losses, of one unit more or less, in [FPR, 1]; 1
        where no bound is found.

    Raises:
        AccountingError: the rate is not in (0, 1).
    """
    from hdpfl_tools.measures.pld import GridAccountant

    if not 0 < false_positive_rate < 1:
        raise AccountingError("a false-positive rate must lie in (0, 1)")
    # Above log(1/FPR) the first part alone exceeds 1; tests that find nearly all have an ε below 0.
    largest = -math.log(false_positive_rate)
    epsilons = np.union1d(np.linspace(_LEAST, largest, _EPSILONS), [0.0])
    try:
        deltas = GridAccountant(interval).compose(event).deltas(epsilons)
    except OverflowError:  # privacy losses beyond e^709: next to no noise
        return 1.0
    bounds = np.exp(epsilons) * false_positive_rate + deltas
    # A test may look for a unit more or for a unit less: the better of the two.
    both = np.minimum(bounds, 1.0).min(axis=1)
    return float(max(*both, false_positive_rate)) if np.isfinite(both).all() else 1.0
