"""Array types of updates and of derived numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Updates = npt.NDArray[np.float32]
"""Updates of a round, float32, shape ``(n, d)``: a client per row."""
