"""Which two sites' updates share their noise: part of the guard ``evidence``.

Honest noise is drawn by each site for itself. A jittered copy of another's update is no exact copy,
and to factor analysis it looks free of noise.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

SURE = 6.0
"""Standard deviations of a correlation of independent noise: 2e-9 for a pair of honest sites."""
NEAR, ABOVE = 0.2, 3.0
"""Without silent sums: a cosine above NEAR, and ABOVE times what else there is, is no chance."""
SAME = 0.999
"""A cosine that no two honest updates reach, if nothing is known of the common signal."""
_HUSH = 1e-4
"""Silent sums below this share of an update hold rounding alone: the site adds no noise."""


def shared_noise(
    cosines: Matrix, size: int, silent: npt.NDArray[np.float32] | None = None
) -> list[tuple[int, int]]:
    """Return the pairs of rows that share their noise, the most alike first.

    Args:
        cosines: of the updates, shape ``(n, n)``, the diagonal 0.
        size: d, coordinates of an update.
        silent: the updates' silent sums, shape ``(n, p)``, where the model has a head: then noise
            is compared with noise, and no signal can be in the way.
    """
    if silent is not None:
        found = _noise_cosines(silent)
        alike = np.abs(found) > max(SURE / math.sqrt(silent.shape[1]), NEAR)
    else:
        found, alike = cosines, _unexplained(cosines, size)
    pairs = [(int(i), int(j)) for i, j in np.argwhere(np.triu(alike, 1))]
    return sorted(pairs, key=lambda pair: -abs(float(found[pair])))


def _noise_cosines(silent: npt.NDArray[np.float32]) -> Matrix:
    """Return the silent sums' cosines, 0 on the diagonal and for sites without noise."""
    rows = silent.astype(np.float64)
    norms = np.sqrt(np.sum(rows**2, axis=1))
    loud = norms > _HUSH * float(np.median(norms))
    unit = np.where(loud, 1 / np.where(loud, norms, 1), 0)[:, None] * rows
    found: Matrix = unit @ unit.T
    np.fill_diagonal(found, 0)
    return found


def _unexplained(cosines: Matrix, size: int) -> npt.NDArray[np.bool_]:
    """Return which cosines no common signal explains, shape ``(n, n)``.

    Under one common signal cos(uᵢ, uⱼ) = AᵢAⱼ/S, where Aᵢ is the sum of i's cosines with the rest
    and S the sum of the rest's among themselves, both free of noise in the mean.
    """
    n = len(cosines)
    alike = np.zeros((n, n), dtype=np.bool_)
    if n < 4:
        return alike
    third = np.sort(np.abs(cosines), axis=1)[:, -3]
    sums, total = cosines.sum(1), float(cosines.sum())
    chance = SURE * math.sqrt(2 * (n - 2) * (n - 3) / size)
    for i, j in np.argwhere(np.triu(cosines > NEAR, 1)):
        cosine = float(cosines[i, j])
        rest = total - 2 * (sums[i] + sums[j]) + 2 * cosine - chance
        explained = (sums[i] - cosine) * (sums[j] - cosine) / rest if rest > 0 else SAME / ABOVE
        alike[i, j] = cosine > ABOVE * max(third[i], third[j], explained)
    return alike
