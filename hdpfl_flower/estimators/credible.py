"""Detection of updates without normal noise: non-finite or flat.

A private update is its signal and normal noise, and no level of noise makes it flat: a vector with
coordinates of one size, for example a constant, would pass for the quietest of the round and take
all the weight, because its sender can make its mean square as small as it likes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import EstimationError
from hdpfl_flower.linalg.types import Vector

Flags = npt.NDArray[np.bool_]

FLAT = "flat: its coordinates have one size, as no noise has; taken for the noisiest of the round"
_KURTOSIS = 1.1
"""Kurtosis E u⁴ / (E u²)² below which an update is flat.

It is 1 for a constant, or one size with any signs; 3 for normal noise, and no less for noise with a
heavy-tailed signal. A constant with jitter j has 1 + 4j²: j up to 0.16 is flat.
"""
_FEWEST = 16
"""Coordinates below which normal noise could look flat by chance.

Of 400,000 draws each, 8 coordinates were flat in 48, 12 and 16 in none; at 16 the least kurtosis
was 1.14.
"""
_ENOUGH = 2_000
"""Coordinates that are examined."""


def require_finite(squares: Vector) -> None:
    """Refuse updates with NaN, infinite or too large numbers.

    Too large means beyond float32. A number that is not finite shows in its row's mean
    square, so that no pass is needed for it.

    Args:
        squares: mean squares of the rows, shape ``(n,)``; the diagonal of their moments.

    Raises:
        EstimationError: with the positions of these rows, and none of their values.
    """
    wrong = np.flatnonzero(~(squares <= np.finfo(np.float32).max))
    if len(wrong):
        rows = ", ".join(str(int(i)) for i in wrong[:8])
        raise EstimationError(
            f"an update holds numbers that are not finite or too large to be squared (row {rows}): "
            "no noise can be estimated; leave it out"
        )


def flat_updates(sample: npt.NDArray[np.float32]) -> Flags:
    """Return a mask of flat updates, shape ``(n,)``.

    Args:
        sample: some coordinates of every update or all, float32, shape ``(n, d)``; below 16
            coordinates no update is called flat.
    """
    n, d = sample.shape
    flat = np.zeros(n, dtype=np.bool_)
    if d < _FEWEST:
        return flat
    sample = sample[:, :: max(d // _ENOUGH, 1)]
    largest = np.abs(sample).max(axis=1)
    for i in np.flatnonzero((largest > 0) & np.isfinite(largest)):
        squares = np.square(sample[i] / largest[i])  # scaled: squares of squares underflow
        second = float(squares.mean(dtype=np.float64))
        flat[i] = float(np.square(squares).mean(dtype=np.float64)) < _KURTOSIS * second**2
    return flat


def levels_of_flat(levels: Vector, flat: Flags) -> Vector:
    """Return the levels ``(n,)``, flat updates at the others' largest.

    If all are flat the levels stay: there is no other update to compare with.
    """
    if not flat.any() or flat.all():
        return levels
    raised: Vector = np.where(flat, levels[~flat].max(), levels)
    return raised
