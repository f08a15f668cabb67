"""Estimates of spread within levels and gaps between them.

For ``level-ratio = "auto"`` (``levels.drift_weights``): h, the variance of one update within a
level, and D², the squared distance of two levels' means less what noise adds to it. Both are moving
averages, for updates shrink over a run; an average has a standard error. All of it is made of
what was noised already, and of opted-out clients' updates, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DECAY = 0.95
"""A round's weight falls to a third in twenty rounds."""
MARGIN = 2.0
"""Standard errors from 0 at which a gap counts."""


@dataclass(frozen=True)
class MovingAverage:
    """A moving average, element by element.

    Attributes:
        value: Σ of the observations, each by its weight.
        mass: Σ of these weights.
    """

    value: Floats
    mass: Floats


Averages = Mapping[str, MovingAverage]
"""The moving averages of a run, by name."""


def observe(state: Averages, name: str, values: Floats, seen: npt.NDArray[np.bool_]) -> Averages:
    """Return the state with one more observation of ``name`` where ``seen``.

    >>> one = observe({}, "h", np.array([2.0]), np.array([True]))
    >>> average(observe(one, "h", np.array([2.0]), np.array([True])), "h", (1,))
    array([2.])
    """
    nothing = np.zeros(seen.shape)
    old = state.get(name, MovingAverage(nothing, nothing))
    value = DECAY * old.value + (1 - DECAY) * np.where(seen, values, 0.0)
    mass = DECAY * old.mass + (1 - DECAY) * np.ones(seen.shape)
    # What is not seen does not decay either: its average keeps its standard error.
    new = MovingAverage(np.where(seen, value, old.value), np.where(seen, mass, old.mass))
    return {**state, name: new}


def average(state: Averages, name: str, shape: tuple[int, ...]) -> Floats:
    """Return the averages ``name``, shape ``shape``; NaN without observations."""
    nothing = np.zeros(shape)
    known = state.get(name, MovingAverage(nothing, nothing))
    found: Floats = np.full(shape, np.nan)
    np.divide(known.value, known.mass, out=found, where=known.mass > 0)
    return found


def spread(rows: npt.NDArray[np.float32], mean: Floats) -> float:
    """Return a row's variance about the rows' ``mean``, summed over coordinates.

    NaN for fewer than two rows.
    """
    if len(rows) < 2:
        return math.nan
    return sum(float(np.square(row - mean).sum()) for row in rows) / (len(rows) - 1)


def observed_gaps(means: Floats, variances: Floats) -> Floats:
    """Return ‖Δ̃ⱼ − Δ̃ₖ‖² − Vⱼ − Vₖ, shape ``(l, l)``; its mean is the true D².

    Args:
        means: Δ̃, shape ``(l, d)``.
        variances: V, shape ``(l,)``.

    >>> observed_gaps(np.array([[0.0, 3.0], [4.0, 0.0]]), np.array([1.0, 2.0]))
    array([[ 0., 22.],
           [22.,  0.]])
    """
    products = means @ means.T
    squares = np.diag(products)
    # ‖a − b‖² = ‖a‖² + ‖b‖² − 2·a·b; noise adds Vⱼ + Vₖ to it on average.
    gaps: Floats = squares[:, None] + squares[None] - 2 * products
    gaps -= variances[:, None] + variances[None]
    np.fill_diagonal(gaps, 0.0)
    return gaps


def observe_gaps(state: Averages, name: str, gaps: Floats, seen: npt.NDArray[np.bool_]) -> Averages:
    """Return the state with one more observation of ``gaps`` and their squares."""
    return observe(observe(state, name, gaps, seen), f"{name}-square", gaps**2, seen)


def sure_gaps(state: Averages, name: str, levels: int) -> Floats:
    """Return D² ≥ 0: the average less :data:`MARGIN` standard errors, ``(levels, levels)``.

    Counted over all rounds planned, an error of one standard error outweighs the noise of a round;
    so what may be noise alone counts nothing. 0 where nothing was seen.

    Args:
        state: holds what :func:`observe_gaps` saw, of :func:`observed_gaps`.
        name: under which it saw it.
        levels: l.
    """
    shape = levels, levels
    found = np.nan_to_num(average(state, name, shape))
    squares = np.nan_to_num(average(state, f"{name}-square", shape))
    # With weights (1 − D)·Dᵗ of n observations the mass is 1 − Dⁿ, at least 1 − D once something
    # was seen; Σ of the squared weights over mass² is `share`.
    mass = np.maximum(state[name].mass if name in state else np.zeros(shape), 1 - DECAY)
    share = (1 - DECAY) / (1 + DECAY) * (2 - mass) / mass  # the sum of squares of its weights
    errors = np.sqrt(np.maximum(squares - found**2, 0.0) * share)
    gaps: Floats = np.maximum(found - MARGIN * errors, 0.0)
    np.fill_diagonal(gaps, 0.0)
    return gaps


def sampling_gaps(sampled: Floats) -> Floats:
    """Return the gap of alike levels: h/N for N clients.

    A hundred opted-out clients are a hundred clients, in every round.

    Args:
        sampled: h/N of each level, 0 where it is not known, shape ``(l,)``.

    >>> sampling_gaps(np.array([0.25, 0.0]))
    array([[0.  , 0.25],
           [0.25, 0.  ]])
    """
    gaps: Floats = sampled[:, None] + sampled[None]
    np.fill_diagonal(gaps, 0.0)
    return gaps
