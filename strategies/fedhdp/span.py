"""Two parts of an update: the opted-out clients' past directions, and the rest.

Ours, for ``level-ratio = "auto"``. Updates of clients vary in few directions, the noise for privacy
in all d of them alike. So in the span of some earlier updates without noise the noisy mean of many
clients is the better one, and outside of it, where the noise is nearly everything, the mean of few
without noise is. Weighing both parts by one number loses on both.

The span is of earlier rounds' updates, so that it does not depend on what is weighed;
it is made of opted-out clients' updates alone and costs no privacy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

KEPT = 20
"""Earlier updates that are kept, fewer for large models."""
MEMORY = 64 * 2**20
"""Bytes that they may take."""

_RANK = 1e-6
"""Relative squared singular value below which a direction is rounding error."""


def keep_span(kept: Floats | None, rows: npt.NDArray[np.float32]) -> Floats:
    """Return the newest updates in place of the oldest, each of length 1.

    Args:
        kept: as the last round left them, shape ``(k, d)``; None before the first.
        rows: updates without noise, shape ``(n, d)``.
    """
    size = rows.shape[1]
    old = np.zeros((0, size)) if kept is None else kept
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    new = np.divide(rows, lengths, where=lengths > 0, out=np.zeros(rows.shape))[lengths[:, 0] > 0]
    # 8 bytes a number: float64.
    room = max(1, min(KEPT, MEMORY // (8 * size)))
    newest: Floats = np.vstack([old, new])[-room:]
    return newest


class Span:
    """The span of the updates that are kept."""

    def __init__(self, kept: Floats | None, size: int) -> None:
        """Compute an orthonormal basis of the span; an empty one without updates."""
        self._kept = np.zeros((0, size)) if kept is None else kept
        # K Kᵀ = V Λ Vᵀ with K of shape (k, d), so the rows of Λ^(−½) Vᵀ K are orthonormal.
        values, vectors = np.linalg.eigh(self._kept @ self._kept.T)
        good = values > _RANK * max(float(values.max(initial=0.0)), 1e-300)
        self._mix = (vectors / np.sqrt(np.where(good, values, 1.0)))[:, good]

    @property
    def rank(self) -> int:
        """Return k, the number of directions."""
        return int(self._mix.shape[1])

    def inside(self, rows: npt.NDArray[np.floating]) -> Floats:
        """Return the coordinates of ``rows`` in the span, shape ``(n, k)``.

        >>> kept = keep_span(None, np.array([[0, 3, 0], [0, 0, 5]], np.float32))
        >>> float(np.abs(Span(kept, 3).inside(np.array([[7.0, 0, 4]]))).sum())
        4.0
        """
        # Row by row: all float32 rows at once would be copied to float64.
        products = np.array([self._kept @ row for row in rows]).reshape(len(rows), len(self._kept))
        coordinates: Floats = products @ self._mix
        return coordinates

    def lift(self, coordinates: Floats) -> Floats:
        """Return the vectors of ``coordinates``, ``(n, d)``: the inverse on the span."""
        vectors: Floats = (coordinates @ self._mix.T) @ self._kept
        return vectors
