"""The energy of the noise in a weighted sum of a round's updates."""

from __future__ import annotations

import math

import numpy as np

from hdpfl_flower.linalg.sums import BLOCK
from hdpfl_flower.linalg.types import Updates, Vector


def noise_energy(weights: Vector, variances: Vector, d: int) -> float:
    """Return E‖Σ wᵢεᵢ‖² = d·Σ wᵢ²σᵢ².

    Args:
        weights: shape ``(n,)``.
        variances: σᵢ² per coordinate, shape ``(n,)``; infinite for an update of zeros, which adds
            no noise.
        d: coordinates.
    """
    known = np.where(np.isfinite(variances), variances, 0.0)
    return float(d * (weights**2 @ known))


def sampling_energy(weights: Vector, updates: Updates) -> float:
    """Return n/(n − 1)·Σ wᵢ²‖uᵢ − ū‖², ū = Σ wᵢuᵢ: the energy where the sites are drawn anew.

    It holds the noise of the updates and what the sites' own signals differ by. Infinite for one
    update. One pass over the updates, in blocks.
    """
    n, d = updates.shape
    if n < 2:
        return math.inf
    distances = np.zeros(n)
    for start in range(0, d, BLOCK):
        block = updates[:, start : start + BLOCK]
        mean = np.zeros(block.shape[1])
        for weight, row in zip(weights, block, strict=True):
            mean += weight * row.astype(np.float64)
        distances += [float(np.square(row - mean).sum()) for row in block]
    return float(n / (n - 1) * (weights**2 @ distances))
