"""What a server learns over the rounds about the spread within levels and the gaps between them.

For ``level-ratio = "auto"`` (``levels.drift_weights``): h, the variance of one update within a
level, and D², the squared distance of two levels' means less what noise adds to it. Both are moving
averages, for updates shrink as a run goes on; an average has a standard error. All of it is made of
what was noised already, and of opted-out clients' updates, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
State = Mapping[str, Floats]

DECAY = 0.95
"""A round's weight falls to a third in twenty rounds."""
MARGIN = 2.0
"""Standard errors by which a gap must be larger than nothing."""


def observe(state: State, name: str, values: Floats, seen: npt.NDArray[np.bool_]) -> State:
    """Return the state with one more observation of the averages ``name`` where ``seen``.

    >>> one = observe({}, "h", np.array([2.0]), np.array([True]))
    >>> average(observe(one, "h", np.array([2.0]), np.array([True])), "h", (1,))
    array([2.])
    """
    new = dict(state)
    for part, observation in (
        ("value", np.where(seen, values, 0.0)),
        ("mass", np.ones(seen.shape)),
    ):
        key = f"{name}_{part}"
        old = state.get(key, np.zeros(seen.shape))
        new[key] = np.where(seen, DECAY * old + (1 - DECAY) * observation, old)
    return new


def average(state: State, name: str, shape: tuple[int, ...]) -> Floats:
    """Return the averages ``name``, shape ``shape``; NaN where nothing was seen."""
    nothing = np.zeros(shape)
    mass = state.get(f"{name}_mass", nothing)
    found: Floats = np.full(shape, np.nan)
    np.divide(state.get(f"{name}_value", nothing), mass, out=found, where=mass > 0)
    return found


def spread(rows: npt.NDArray[np.float32], mean: Floats) -> float:
    """Return the variance of one row about the rows' ``mean``, summed over coordinates.

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
    gaps: Floats = squares[:, None] + squares[None] - 2 * products
    gaps -= variances[:, None] + variances[None]
    np.fill_diagonal(gaps, 0.0)
    return gaps


def observe_gaps(state: State, name: str, gaps: Floats, seen: npt.NDArray[np.bool_]) -> State:
    """Return the state with one more observation of ``gaps``, and of their squares."""
    return observe(observe(state, name, gaps, seen), f"{name}-square", gaps**2, seen)


def sure_gaps(state: State, name: str, levels: int) -> Floats:
    """Return D² ≥ 0: the average less :data:`MARGIN` standard errors, shape ``(levels, levels)``.

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
    mass = np.maximum(state.get(f"{name}_mass", np.zeros(shape)), 1 - DECAY)
    share = (1 - DECAY) / (1 + DECAY) * (2 - mass) / mass  # the sum of squares of its weights
    errors = np.sqrt(np.maximum(squares - found**2, 0.0) * share)
    gaps: Floats = np.maximum(found - MARGIN * errors, 0.0)
    np.fill_diagonal(gaps, 0.0)
    return gaps


def sampling_gaps(sampled: Floats) -> Floats:
    """Return the gap between levels that are alike: a level of N clients misses by h/N.

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
