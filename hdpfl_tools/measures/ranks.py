"""Ranking measures: AUROC, average precision, sensitivity at a specificity.

Every measure takes weights, so that all resamples of a bootstrap use one sort of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.measures.bootstrap import Floats

_ROUNDING = 1e-12


@dataclass(frozen=True, repr=False)
class Curve:
    """Weight at each distinct score, in ascending order.

    Attributes:
        ones: of records of the class, shape ``(c, g)``, g distinct scores.
        zeros: of the others, likewise.
    """

    ones: Floats
    zeros: Floats

    def auroc(self) -> Floats:
        """Return the area under the ROC curve, shape ``(c,)``.

        NaN if a class has no weight.

        The probability that a record of the class scores above another one, a tie counted as half
        (Hanley and McNeil, Radiology 1982).
        """
        below = np.cumsum(self.zeros, axis=1) - self.zeros / 2
        pairs = self.ones.sum(1) * self.zeros.sum(1)
        return _ratio((self.ones * below).sum(1), pairs)

    def average_precision(self) -> Floats:
        """Return the area under the precision-recall curve, shape ``(c,)``; NaN as above.

        The mean of the precision over the records of the class, without interpolation (Davis and
        Goadrich, ICML 2006, on why not to interpolate). Without a model it is the class's share.
        """
        hits = np.cumsum(self.ones[:, ::-1], axis=1)
        chosen = hits + np.cumsum(self.zeros[:, ::-1], axis=1)
        precision = np.divide(hits, chosen, out=np.zeros_like(hits), where=chosen > 0)
        area = _ratio((self.ones[:, ::-1] * precision).sum(1), hits[:, -1])
        return np.where(self.zeros.sum(1) > 0, area, np.nan)

    def sensitivity(self, specificity: float) -> Floats:
        """Return the largest share of the class found, shape ``(c,)``; NaN as above.

        Args:
            specificity: the least share of the others that lies at or below the threshold; the
                threshold is chosen on the same records.
        """
        others, total = np.cumsum(self.zeros, axis=1), self.zeros.sum(1, keepdims=True)
        # The lowest threshold that is specific enough: records at or below it are not found.
        enough = others >= (specificity - _ROUNDING) * total
        threshold = enough.argmax(1)[:, None]
        missed = np.take_along_axis(np.cumsum(self.ones, axis=1), threshold, 1)[:, 0]
        share = 1 - _ratio(missed, self.ones.sum(1))
        return np.where(total[:, 0] > 0, np.clip(share, 0, 1), np.nan)


class Ranking:
    """Records sorted by a score, with ties grouped."""

    def __init__(self, scores: Floats, positive: npt.NDArray[np.bool_]) -> None:
        """Sort the records.

        Args:
            scores: finite, shape ``(n,)``, n ≥ 1.
            positive: whether a record is of the class, shape ``(n,)``.
        """
        self._order = np.argsort(scores, kind="stable")
        self._starts = np.flatnonzero(np.diff(scores[self._order], prepend=-np.inf))
        self._positive = positive[self._order]

    def curve(self, weights: Floats) -> Curve:
        """Return the curve of records weighted by ``weights``, shape ``(c, n)``."""
        ordered = weights[:, self._order]
        ones = np.add.reduceat(ordered * self._positive, self._starts, axis=1)
        return Curve(ones, np.add.reduceat(ordered, self._starts, axis=1) - ones)


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.full_like(below, np.nan), where=below > 0)
