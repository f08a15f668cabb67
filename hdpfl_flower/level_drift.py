"""What a server learns over the rounds about the spread within levels and the gaps between them.

For ``level-ratio = "auto"`` (``levels.drift_weights``): h, the variance of one update within a
level, and D², the squared distance of two levels' means less what noise adds to it. Both are moving
averages: updates shrink as a run goes on. All of it is made of what was noised already, and of
opted-out clients' updates, so it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
State = Mapping[str, Floats]

DECAY = 0.9
"""A round's weight falls to a third in ten rounds."""
CAUTION = 2.0
"""D² is taken this many standard errors below its average, for a gap must be seen to count."""


def observe(state: State, name: str, values: Floats, seen: npt.NDArray[np.bool_]) -> State:
    """Return the state with one more observation of the averages ``name`` where ``seen``.

    >>> one = observe({}, "h", np.array([2.0]), np.array([True]))
    >>> average(observe(one, "h", np.array([2.0]), np.array([True])), "h", (1,))[0]
    array([2.])
    """
    new = dict(state)
    values = np.where(seen, values, 0.0)
    for part, observation, keep in (
        ("value", values, DECAY),
        ("square", values**2, DECAY),
        ("mass", np.ones_like(values), DECAY),
        ("mass2", np.full_like(values, 1 - DECAY), DECAY**2),
    ):
        key = f"{name}_{part}"
        old = state.get(key, np.zeros_like(values))
        new[key] = np.where(seen, keep * old + (1 - DECAY) * observation, old)
    return new


def average(state: State, name: str, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Return the averages ``name`` and their standard errors; NaN where nothing was seen.

    After a single observation the standard error is 0, not unknown: what one round shows counts.
    """
    nothing = np.zeros(shape)
    mass = state.get(f"{name}_mass", nothing)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = state.get(f"{name}_value", nothing) / mass
        square = state.get(f"{name}_square", nothing) / mass
        count = mass**2 / state.get(f"{name}_mass2", nothing)
        error = np.sqrt(np.maximum(square - mean**2, 0) / np.maximum(count, 1))
    return mean, error


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


def cautious_gaps(state: State, variances: Floats, size: int, sampled: Floats) -> Floats:
    """Return D² ≥ 0: the average less two standard errors, and never below what is sure.

    The standard error is at least that of d squared normals, (Vⱼ + Vₖ)·√(2/d). Sure is that a
    level of N clients misses the mean of all there could be by h/N, however alike the levels are:
    a hundred opted-out clients are a hundred clients, in every round.

    Args:
        state: holds the averages ``gap``.
        variances: V, shape ``(l,)``.
        size: d.
        sampled: h/N of each level, 0 where it is not known, shape ``(l,)``.
    """
    shape = (len(variances),) * 2
    mean, error = average(state, "gap", shape)
    least = (variances[:, None] + variances[None]) * math.sqrt(2 / size)
    seen = np.nan_to_num(np.maximum(mean - CAUTION * np.maximum(error, least), 0.0))
    gaps: Floats = np.maximum(seen, sampled[:, None] + sampled[None])
    np.fill_diagonal(gaps, 0.0)
    return gaps
