"""Clipping of a whole update."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BELOW = 1 - 1e-6
"""Clipping margin below S for later rounding."""


def clip_update(update: Floats, clip_norm: float) -> Floats:
    """Return Δ·min(1, S/‖Δ‖), float64, ``(d,)``; 0 if not finite.

    >>> clip_update(np.array([0.3, 0.4]), 1.0), clip_update(np.zeros(2), 1.0)
    (array([0.3, 0.4]), array([0., 0.]))
    >>> bool(np.linalg.norm(clip_update(np.array([3.0, 4.0]), 1.0)) <= 1)
    True
    """
    # Infinite where the square overflows float64, and then refused like any norm that is not
    # finite.
    norm = math.sqrt(float(update @ update))
    if not math.isfinite(norm):
        return np.zeros_like(update)
    bound = clip_norm * BELOW
    return update if norm <= bound else update * (bound / norm)
