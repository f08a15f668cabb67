"""Calibration slope and intercept of predicted probabilities.

Cox's recalibration (Biometrika 1958), as clinical prediction models report it (Van Calster et al.,
BMC Medicine 2019, "Calibration: the Achilles heel of predictive analytics"): with x the logit of
the predicted probability, the slope is b of logit P(y = 1) = a + b·x: 1 if predictions are
correctly spread, below 1 if they are too extreme. The intercept ("in the large") is a
with b fixed at 1: 0 if predictions are right on average, above 0 if they are too low.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit

from hdpfl_flower.measures.bootstrap import Floats

LARGEST = 36.0
"""Bound on a logit, beyond which probabilities round to 0 or 1."""
_STEPS, _TINY = 100, 1e-10


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
        x, y = np.clip(logits, -LARGEST, LARGEST), positive
        once = np.ones((1, len(x)))
        self.slope = self.intercept = float("nan")
        self._moved = np.zeros((len(x), 5))
        self._shifted = np.zeros((len(x), 2))
        self._at = np.zeros(2)
        if not 0 < y.sum() < len(y):
            return
        shift = _solved(lambda a: float(y.sum() - expit(a + x).sum()))
        share = expit(shift + x)
        self.intercept, self._shifted = shift, np.stack([y - share, share * (1 - share)], 1)
        if overlap(x, y):
            self._at = _newton(x, y)
            share = expit(self._at[0] + self._at[1] * x)
            known = share * (1 - share)
            self._moved = np.stack([y - share, (y - share) * x, known, known * x, known * x * x], 1)
            self.slope = float(self.resampled(once)[0, 0])

    def resampled(self, weights: Floats) -> Floats:
        """Return slope and intercept of resamples, shape ``(c, 2)``; NaN if undefined.

        One Newton step from the fit to all records: as good as the full fit to first order
        (Andrews, Econometrica 2002, "a computationally attractive k-step bootstrap").

        Args:
            weights: how often each record counts, shape ``(c, n)``.
        """
        u, v, one, first, second = (weights @ self._moved).T
        pull, push = (weights @ self._shifted).T
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = self._at[1] + (one * v - first * u) / (one * second - first**2)
            intercept = self.intercept + pull / push
        return np.where(np.isfinite(both := np.stack([slope, intercept], 1)), both, np.nan)


def overlap(x: Floats, y: Floats) -> bool:
    """Return whether no threshold on ``x`` separates the labels, as fits need."""
    ones, zeros = x[y > 0], x[y <= 0]
    return bool(ones.min() < zeros.max() and zeros.min() < ones.max())


def _newton(x: Floats, y: Floats) -> Floats:
    """Return (a, b) of the logistic regression of ``y`` on ``x``.

    The labels must overlap.

    Newton's steps are halved until the likelihood does not fall; it is concave, so that they end.
    """
    design, at = np.stack([np.ones_like(x), x], 1), np.array([0.0, 1.0])

    def likelihood(theta: Floats) -> float:
        z = design @ theta
        return float((y * z - np.logaddexp(0, z)).sum())

    for _ in range(_STEPS):
        share = expit(design @ at)
        score = design.T @ (y - share)
        if np.abs(score).max() < _TINY * len(x):
            break
        hessian = (design * (share * (1 - share))[:, None]).T @ design
        # A small multiple of the identity: far from the optimum the Hessian may vanish.
        step = np.linalg.solve(hessian + _TINY * np.eye(2), score)
        while likelihood(at + step) < likelihood(at) and np.abs(step).max() > _TINY:
            step = step / 2
        at = at + step
    return at


def _solved(falling: Callable[[float], float]) -> float:
    """Return the zero of a falling function, by bracketed root search."""
    from scipy.optimize import brentq

    return float(brentq(falling, -4 * LARGEST, 4 * LARGEST, xtol=1e-12))
