"""Weighted measures of survival, for bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.measures.bootstrap import Floats
from hdpfl_flower.measures.concordance import Concordance, risk_of

OF_SURVIVAL = ("concordance", "log-loss")


class SurvivalMeasures:
    """:data:`OF_SURVIVAL` of a discrete hazard.

    Attributes:
        names: the measures.
        missing: measure → reason why it has no value on these records.
    """

    names: Sequence[str] = OF_SURVIVAL

    def __init__(self, outputs: Floats, targets: npt.NDArray[np.int64]) -> None:
        """Score the records.

        Args:
            outputs: logits of the hazard in each interval, finite, shape ``(n, T)``, n ≥ 1.
            targets: 2 · interval + event, shape ``(n,)``.
        """
        last, event = targets // 2, targets % 2 == 1
        self._concordance = Concordance(risk_of(outputs), targets)
        at_risk = np.arange(outputs.shape[1]) <= last[:, None]
        losses = np.where(at_risk, np.logaddexp(0, outputs), 0.0).sum(1)
        self._losses = losses - np.where(event, outputs[np.arange(len(last)), last], 0.0)
        why = "no record has its event before another one's end"
        known = np.isfinite(self._concordance(np.ones((1, len(targets)))))[0]
        self.missing = {} if known else {"concordance": why}

    def __call__(self, weights: Floats) -> Floats:
        """Return the measures ``(c, 2)`` of weights ``(c, n)``; NaN if undefined."""
        losses = weights @ self._losses / weights.sum(1)
        return np.stack([self._concordance(weights), losses], axis=1)
