"""Noise multipliers of clients that differ by ε: a table z(ε).

The searches for a dozen fixed ε, two an octave, are the knots. Between them log z is interpolated
in log ε by the cubic through the four nearest; the z of a client is the guess's next neighbour
above that was itself found to cost at most the client's ε. The table decides which z are tried, and
never whether one suffices: where none is confirmed, the search decides as for any other client.

The knots do not depend on who else is there, so that a client's z follows from its own steps and
its own (ε, δ).

For simulated sites alone, few or many: their noise comes from a seed, and their z is kept on disk
(``calibration_cache.py``) and read back without another cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import (
    ExtraRelease,
    Steps,
    calibrate,
    confirmed,
    epsilon_of,
    event_of,
    interval_for,
    merge,
)
from hdpfl_flower.privacy.calibration_cache import cached_in_book

_AN_OCTAVE = 2
"""Knots from an ε to twice that."""
_CACHE_VERSION = 4


class _Knot(NamedTuple):
    """A point of the curve: logarithms of a z's exact cost and of z."""

    log_epsilon: float
    log_z: float


def calibrate_among_many(
    schedule: Sequence[Steps], epsilon: float, delta: float, beside: Sequence[ExtraRelease] = ()
) -> float:
    """Return the noise multiplier of ``schedule`` by its table.

    Args:
        schedule: the steps of the whole run, in any order.
        epsilon: target ε > 0; ``inf`` asks for no noise.
        delta: target δ.
        beside: releases that are no steps; where there are some, no table is shared.

    Returns:
        z ≥ 0, rounded up, no further above the least than :func:`calibrate` returns.

    Guarantees:
        That of :func:`calibrate`: the cost of z on the fine grid is at most ε, also where the table
        is wrong.

    Raises:
        AccountingError: as :func:`calibrate`.
    """
    merged = tuple(merge(schedule))
    if not merged or beside or not 0 < epsilon < math.inf:
        return calibrate(schedule, epsilon, delta, beside)
    return _by_table(merged, epsilon, delta)


@lru_cache(maxsize=16384)
def _by_table(schedule: tuple[Steps, ...], epsilon: float, delta: float) -> float:
    def compute() -> float:
        try:
            guess, slope = _guess(schedule, epsilon, delta)
            found = confirmed(schedule, epsilon, delta, guess, slope)
        except AccountingError:  # a knot has no noise, and the search says why if ε has none
            found = 0.0
        return found or calibrate(schedule, epsilon, delta)

    return cached_in_book(_key("table", schedule, delta), epsilon, compute)


def calibrate_simulated(
    schedule: Sequence[Steps], epsilon: float, delta: float, beside: Sequence[ExtraRelease] = ()
) -> float:
    """Return :func:`calibrate`'s noise multiplier, searched for once by all simulations here.

    Arguments and errors are those of :func:`calibrate`.
    """
    merged, extra = tuple(merge(schedule)), tuple(one for one in beside if one.count)

    def compute() -> float:
        return calibrate(merged, epsilon, delta, extra)

    return cached_in_book(_key("search", merged, delta, extra), epsilon, compute)


def _key(*of: object) -> str:
    """Return a digest of all inputs of z but ε."""
    return repr((_CACHE_VERSION, version("dp-accounting"), *of))


def _guess(schedule: tuple[Steps, ...], epsilon: float, delta: float) -> tuple[float, float]:
    """Return the z of the table at ε, and how fast the cost falls there: −d log ε / d log z."""
    below = math.floor(_AN_OCTAVE * math.log2(epsilon))
    knots = [_knot(schedule, number, delta) for number in range(below - 1, below + 3)]
    at = np.array([knot.log_epsilon for knot in knots])
    log_z = np.array([knot.log_z for knot in knots])
    # Lagrange's weights, from the differences of each two knots.
    apart = at[:, None] - at + np.eye(len(at))
    away = np.where(np.eye(len(at), dtype=bool), 1.0, math.log(epsilon) - at)
    weights = np.prod(away / apart, axis=1)
    slope = -(at[2] - at[1]) / (log_z[2] - log_z[1])
    return math.exp(float(weights @ log_z)), float(slope)


@lru_cache(maxsize=1024)
def _knot(schedule: tuple[Steps, ...], number: int, delta: float) -> _Knot:
    epsilon = 2.0 ** (number / _AN_OCTAVE)
    z = calibrate(schedule, epsilon, delta)
    interval = interval_for(epsilon, sum(steps.count for steps in schedule))
    # What z costs exactly: the search stops within its tolerance of ε, and the table need not.
    cost = epsilon_of(event_of(schedule, z), delta, interval)
    if not cost > 0:
        raise AccountingError("an ε this small costs nothing at this delta")
    return _Knot(math.log(cost), math.log(z))
