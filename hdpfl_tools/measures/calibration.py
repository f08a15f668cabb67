"""Calibration slope and intercept of predicted probabilities.

Cox's recalibration (Biometrika 1958), as clinical prediction models report it (Van Calster et al.,
BMC Medicine 2019, "Calibration: the Achilles heel of predictive analytics"): with x the logit of
the predicted probability, the slope is b of logit P(y = 1) = a + b·x: 1 if predictions are
correctly spread, below 1 if they are too extreme. The intercept ("in the large") is a
with b fixed at 1: 0 if predictions are right on average, above 0 if they are too low.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from hdpfl_flower.measures.bootstrap import Floats

LARGEST = 36.0
"""Bound on a logit, beyond which probabilities round to 0 or 1."""


class Calibration:
    """Fit of one class's logits to its labels, with resamples.

    Attributes:
        slope: NaN if the logits do not vary, or a threshold separates the classes, so that no
            slope is large enough.
        intercept: NaN where a class has no record.
    """

    def __init__(self, logits: Floats, positive: Floats) -> None:
        """Fit slope and intercept.

        Args:
            logits: x, shape ``(n,)``.
            positive: y, 1 or 0, shape ``(n,)``.
        """
        from scipy.optimize import brentq
        from sklearn.linear_model import LogisticRegression

        x, y = np.clip(logits, -LARGEST, LARGEST), positive
        self.slope = self.intercept = float("nan")
        self._of_slope = np.zeros((len(x), 5))
        self._of_intercept = np.zeros((len(x), 2))
        if not 0 < y.sum() < len(y):
            return
        self.intercept = float(
            brentq(lambda a: y.sum() - expit(a + x).sum(), -4 * LARGEST, 4 * LARGEST, xtol=1e-12)
        )
        share = expit(self.intercept + x)
        self._of_intercept = np.stack([y - share, share * (1 - share)], 1)
        if _overlap(x, y):
            model = LogisticRegression(
                C=np.inf, solver="newton-cholesky", tol=1e-10, max_iter=1000
            ).fit(x[:, None], y)
            self.slope = float(model.coef_[0, 0])
            share = expit(model.intercept_[0] + self.slope * x)
            weight = share * (1 - share)
            columns = [y - share, (y - share) * x, weight, weight * x, weight * x * x]
            self._of_slope = np.stack(columns, 1)

    def resampled(self, weights: Floats) -> Floats:
        """Return slope and intercept of resamples, shape ``(c, 2)``; NaN if undefined.

        One Newton step from the fit to all records: as good as the full fit to first order
        (Andrews, Econometrica 2002, "a computationally attractive k-step bootstrap").

        Args:
            weights: how often each record counts, shape ``(c, n)``.
        """
        u, v, total, first, second = (weights @ self._of_slope).T
        pull, push = (weights @ self._of_intercept).T
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = self.slope + (total * v - first * u) / (total * second - first**2)
            intercept = self.intercept + pull / push
        return np.where(np.isfinite(both := np.stack([slope, intercept], 1)), both, np.nan)


def _overlap(x: Floats, y: Floats) -> bool:
    """Return whether no threshold on ``x`` separates the labels, as fits need."""
    ones, zeros = x[y > 0], x[y <= 0]
    return bool(ones.min() < zeros.max() and zeros.min() < ones.max())
