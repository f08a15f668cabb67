"""Levels from pairs of uploads more than one round apart.

The change over the gap is not counted as noise.

Half the mean square of the difference of two uploads, g rounds apart, is σ² + S·φ(g): the client's
noise, and of its signal S the share φ(g) by which it moved meanwhile. If few sites take part in
a round, consecutive uploads are rare, and φ cannot be left out. It is read from the clients
themselves: those with pairs over several gaps show φ(g) − φ(1), for any σ². φ(1) is taken
as 0, as for consecutive uploads before: no difference of pairs can show it.

For each client the sums over all its pairs are kept, by classes of gaps (1, 2, 3–4, 5–8, 9–16 and
17–32 rounds), and only its last upload: memory is bounded for any length of run.

Source: new here; ``docs/concepts/noise-aware.md`` reports its value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.types import Vector

LARGEST = 32
"""Largest gap in rounds of compared uploads."""
CLASSES = 6
FIELDS = 3
"""Sums per class: pairs, levels, later uploads' mean squares."""
_UNSTEADY = 0.05
"""Standard deviation of one pair's drift, in units of the signal."""
_UNSURE = 0.5
"""Standard deviation of φ(g), as a share of it."""
_UNKNOWN = 0.25
"""Same in units of the signal if no client shows φ(g)."""
_LEAST = 0.25
"""Least level after drift, as a share of each client's least mean."""
_BELIEVED = 0.25
"""Largest share of a level that may be in doubt.

q − 1 is the variance of the relative errors, 0.016 if they lie between 0 and 1/4.
"""
_QUIET = 0.02
"""Signal share of the mean square below which drift is invisible."""


@dataclass(frozen=True)
class GapLevels:
    """Each client's noise from pairs of uploads.

    Attributes:
        variances: σ², shape ``(n,)``, positive; NaN without a pair.
        pairs: their number, shape ``(n,)``.
        sure: whether the possible effect of drift is below a quarter, shape ``(n,)``.
        drift: φ at each class of gaps, shape ``(CLASSES,)``, ascending; 0 at the first.
    """

    variances: Vector
    pairs: Vector
    sure: npt.NDArray[np.bool_]
    drift: Vector


def class_of(gap: int) -> int:
    """Return the class of a gap in rounds, from 1 to ``LARGEST``.

    >>> [class_of(gap) for gap in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32)]
    [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """
    return (gap - 1).bit_length()


def levels_of_pairs(sums: npt.NDArray[np.float64], dimension: int) -> GapLevels:
    """Return the levels from all pairs, with drift subtracted.

    Each class of gaps counts by its precision: the chance error of a mean square over d
    coordinates, the unsteadiness of single pairs' drift, and the error of φ. A client with only
    consecutive pairs gets exactly their mean.

    Args:
        sums: of each client and class the number of pairs, the sum of their levels, and that of
            the later uploads' mean squares, shape ``(n, CLASSES, FIELDS)``.
        dimension: d, coordinates that a level is the mean over.
    """
    counts, levels = sums[:, :, 0], sums[:, :, 1]
    pairs = counts.sum(axis=1)
    paired = counts > 0
    means = np.where(paired, levels / np.maximum(counts, 1), np.inf)
    least = np.where(pairs > 0, means.min(axis=1), np.nan)
    squares = sums[:, :, 2].sum(axis=1) / np.maximum(pairs, 1)
    means = np.where(paired, means, 0)
    variances, drift = least.copy(), np.zeros(CLASSES)
    shown = np.zeros(CLASSES, dtype=np.bool_)
    signal = np.zeros(len(sums))
    for _ in range(3):  # signal, drift and noise depend on one another, but little
        signal = np.nan_to_num(np.maximum(squares - variances, 0))
        drift, shown = _drift(counts, means, signal, squares, variances, dimension)
        moved = signal[:, None] * drift
        doubt = signal[:, None] * np.where(shown, _UNSURE * drift, _UNKNOWN)
        chance = 1.5 * np.square(np.nan_to_num(variances)) * 2 / dimension
        noise = chance[:, None] + np.square(_UNSTEADY * signal)[:, None]
        spread = noise / np.maximum(counts, 1) + np.square(doubt)
        weights = np.where(paired, 1 / np.maximum(spread, np.finfo(float).tiny), 0)
        weights /= np.maximum(weights.max(axis=1, keepdims=True), np.finfo(float).tiny)
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        raw = (weights * (means - moved)).sum(axis=1)
        variances = np.where(pairs > 0, np.maximum(raw, _LEAST * least), np.nan)
    unsure = (weights * doubt).sum(axis=1)
    alone = pairs == counts[:, 0]
    consecutive = levels[:, 0] / np.maximum(counts[:, 0], 1)
    variances = np.where(alone & (pairs > 0), consecutive, variances)
    sure = (pairs > 0) & (unsure <= _BELIEVED * np.nan_to_num(variances))
    return GapLevels(variances, pairs, sure, drift)


def _drift(
    counts: Vector,
    means: Vector,
    signal: Vector,
    squares: Vector,
    variances: Vector,
    dimension: int,
) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Return φ by class of gaps, ascending from 0, and known classes.

    Least squares of the clients' contrasts between gaps, in units of their signal.
    """
    from scipy.optimize import nnls

    use = (signal > _QUIET * squares) & ((counts > 0).sum(axis=1) > 1)
    shown = np.ones(CLASSES, dtype=np.bool_)
    if not use.any():
        shown[1:] = False
        return np.zeros(CLASSES), shown
    scaled = means[use] / signal[use, None]
    chance = 3 * np.square(variances[use] / signal[use]) / dimension
    weights = counts[use] / (chance + _UNSTEADY**2)[:, None]
    steps = np.tril(np.ones((CLASSES, CLASSES)))[:, 1:]  # φ = steps @ its increments
    total = weights.sum(axis=1, keepdims=True)
    centred = scaled - (weights * scaled).sum(axis=1, keepdims=True) / total
    design = steps[None] - ((weights @ steps) / total)[:, None]
    root = np.sqrt(weights)
    rows, values = (root[:, :, None] * design).reshape(-1, CLASSES - 1), (root * centred).ravel()
    increments, _ = nnls(rows, values)
    shown[1:] = np.any(counts[use][:, 1:] > 0, axis=0)
    shown[1:] |= np.maximum.accumulate(shown[1:][::-1])[::-1]
    return np.minimum(steps @ increments, 1.0), shown
