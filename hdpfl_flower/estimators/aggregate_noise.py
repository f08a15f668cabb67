"""Noise energy of a weighted sum of a round's updates."""

from __future__ import annotations

import numpy as np

from hdpfl_flower.linalg.types import Vector


def noise_energy(weights: Vector, variances: Vector, d: int) -> float:
    """Return E‖Σ wᵢεᵢ‖² = d·Σ wᵢ²σᵢ².

    Args:
        weights: shape ``(n,)``.
        variances: σᵢ² per coordinate, shape ``(n,)``; infinite for an update of zeros, which adds
            no noise.
        d: coordinates.
    """
    finite = np.where(np.isfinite(variances), variances, 0.0)
    return float(d * (weights**2 @ finite))
