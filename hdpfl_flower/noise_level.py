"""How much noise each update of a round carries, from the updates alone.

The model: the columns of the (d, n) matrix of updates share a low-rank signal and have each their
own noise, so that their Gram matrix over d is ΛΛᵀ + diag(σ²). That is factor analysis, and the
n × n Gram matrix is all it needs: one pass over the updates, whatever d is.
"""

from __future__ import annotations

import math
import warnings
from functools import cache

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from hdpfl_flower.errors import StrategyError

_BLOCK = 16_384
_FLOOR = 1e-6
"""No noise is estimated below this share of the update's own mean square (Heywood cases)."""
_EDGE = 3.27
"""99.9 % point of the Tracy-Widom law (β = 1): one false factor in a thousand rounds of noise."""

Matrix = npt.NDArray[np.float64]


def estimate_noise_levels(
    updates: npt.NDArray[np.float32], method: str = "factor-analysis"
) -> npt.NDArray[np.float64]:
    """Return the noise variance per coordinate of each update.

    Args:
        updates: float32, shape ``(n, d)``, a client a row; no row of zeros.
        method: ``factor-analysis``, or ``column-norm`` (all of an update is taken for noise).

    Returns:
        float64, shape ``(n,)``, positive. With fewer than three clients the signal cannot be told
        from the noise, and ``factor-analysis`` gives what ``column-norm`` does.

    Raises:
        StrategyError: an unknown method, or a row of zeros.
    """
    if method not in ("factor-analysis", "column-norm"):
        raise StrategyError(f"'{method}' is no estimator; choose factor-analysis or column-norm")
    # More threads would change the last bits of the sums, and spin between products this small.
    with _threads().limit(limits=1, user_api="blas"):
        moments = second_moments(updates)
        if not np.all(np.diag(moments) > 0):
            raise StrategyError("an update of zeros has no noise to estimate; leave it out")
        if method == "column-norm":
            return np.diag(moments).copy()
        return factor_analysis(moments, updates.shape[1])


def second_moments(updates: npt.NDArray[np.float32]) -> Matrix:
    """Return the Gram matrix over d, float64, shape ``(n, n)``: one pass, in blocks."""
    n, d = updates.shape
    total = np.zeros((n, n))
    for start in range(0, d, _BLOCK):
        block = updates[:, start : start + _BLOCK]
        total += block @ block.T
    moments: Matrix = total / d
    return moments


def factor_analysis(moments: Matrix, dimension: int) -> npt.NDArray[np.float64]:
    """Return the uniquenesses σ² of the maximum-likelihood factor model, shape ``(n,)``.

    The number of factors grows from 0 while the largest remaining eigenvalue of the whitened
    moments lies above the edge of noise, and never beyond what n variables identify (Ledermann's
    bound): too many factors do more harm than too few.

    Args:
        moments: second moments of n variables over ``dimension`` samples.
        dimension: d.

    Reference: Lawley and Maxwell, Factor Analysis as a Statistical Method (1971), chapter 4; the
    edge: Johnstone, On the distribution of the largest eigenvalue (Annals of Statistics, 2001).
    """
    n, scale = len(moments), np.diag(moments)
    correlations = moments / np.sqrt(np.outer(scale, scale))
    edge = noise_edge(n, dimension)
    shares, factors = np.ones(n), 0
    while (n - factors - 1) ** 2 >= n + factors + 1:
        whitened = correlations / np.sqrt(np.outer(shares, shares))
        if np.linalg.eigvalsh(whitened)[-1 - factors] <= edge:
            break
        factors += 1
        shares = _unique_shares(correlations, factors, shares)
    return shares * scale


def noise_edge(n: int, dimension: int) -> float:
    """Return what the largest eigenvalue of pure noise's moments exceeds once in a thousand."""
    a, b = math.sqrt(dimension - 1), math.sqrt(n)
    spread = (a + b) * (1 / a + 1 / b) ** (1 / 3)
    return float(((a + b) ** 2 + _EDGE * spread) / dimension)


def _unique_shares(
    correlations: Matrix, factors: int, start: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Fit ``factors`` factors and return each variable's unexplained share of its variance.

    scikit-learn takes samples, not moments: 2n rows ±R with RᵀR/n = correlations have mean zero
    and exactly these moments, so its fit does not depend on d.
    """
    from sklearn.decomposition import FactorAnalysis
    from sklearn.exceptions import ConvergenceWarning

    values, vectors = np.linalg.eigh(correlations)
    root = np.sqrt(len(values) * np.maximum(values, 0))[:, None] * vectors.T
    model = FactorAnalysis(
        factors, tol=1e-6, max_iter=1000, svd_method="lapack", noise_variance_init=start
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # as good as it gets is good enough
        model.fit(np.vstack([root, -root]))
    shares: npt.NDArray[np.float64] = np.clip(model.noise_variance_, _FLOOR, 1.0)
    return shares


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()
