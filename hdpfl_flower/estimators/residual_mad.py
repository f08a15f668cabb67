"""Noise levels from each update's residual after prediction by others.

The noise of a DP-SGD update is normal for any signal. A private part of the signal that is
sparse or heavy-tailed adds to the mean square of the residuals, on which factor analysis relies,
but hardly changes the middle of their distribution: the median absolute deviation (MAD) reads
the noise there.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.factor_analysis import FactorModel
from hdpfl_flower.linalg.types import Vector

MAD_OF_NORMAL = 0.6744897501960817
"""Upper quartile of the standard normal."""
_SPREAD = 3.44
"""d · Var ln(MAD² / mean square) of normal residuals: 5.44 − 2."""
_ALARM = 1e-3
"""Probability per round that normal residuals are called heavy-tailed."""


def residual_mad(
    updates: npt.NDArray[np.float32], model: FactorModel
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return noise variances robust to sparse private signal, and its sparsity.

    The leave-one-out residual of client i is (K u)ᵢ / Kᵢᵢ with K the inverse of the modelled
    moments. Its variance is 1 / Kᵢᵢ, and σᵢ²·Kᵢᵢ of that is the client's own noise: the same share
    of its MAD² is the estimate.

    Args:
        updates: float32, shape ``(n, d)``.
        model: their factor model.

    Returns:
        The variances, shape ``(n,)``, and ln(MAD² / mean square) of the residuals in units of its
        standard error under normality, shape ``(n,)``: far below 0 if the tails are heavy. If
        the others leave no residual, as is possible with fewer coordinates than clients, the
        model's variance and 0.
    """
    moments = model.loadings @ model.loadings.T + np.diag(model.variances)
    precision = np.linalg.inv(moments)
    unpredicted = 1 / np.diag(precision)
    residuals = (precision * unpredicted[:, None]).astype(np.float32) @ updates
    mean_square = np.array([np.square(row, dtype=np.float64).mean() for row in residuals])
    spread = np.array([float(np.median(np.abs(row))) for row in residuals])
    mad = np.maximum(spread / MAD_OF_NORMAL, 1e-6 * np.sqrt(mean_square)) ** 2
    shares = np.minimum(model.variances / unpredicted, 1.0)
    left = mean_square > 0
    tails = np.log(np.divide(mad, mean_square, where=left, out=np.ones_like(mad)))
    levels = np.where(left, mad * shares, model.variances)
    return levels, tails / math.sqrt(_SPREAD / updates.shape[1])


def heavy_tailed(scores: Vector) -> bool:
    """Return whether the scores reject normal residuals.

    Normal residuals fail once in a thousand rounds.

    >>> heavy_tailed(np.array([-1.0, 0.5, 2.0])), heavy_tailed(np.array([-6.0, 0.5, 2.0]))
    (False, True)
    """
    from scipy.special import ndtri

    return bool(scores.min() < ndtri(_ALARM / len(scores)))
