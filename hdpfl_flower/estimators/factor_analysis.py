"""Maximum-likelihood factor analysis from second moments alone.

Reference: Lawley and Maxwell, Factor Analysis as a Statistical Method (1971), chapter 4: the
likelihood as a function of the uniquenesses, after the loadings are solved for. No library takes
moments, and a fit from samples costs a hundred times as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.types import Matrix, Vector

FLOOR = 1e-6
"""Least noise as a share of a variable's mean square (Heywood cases)."""
_RIDGE = 1e-9
_PRIOR = 2.0
"""Weight of the prior, in coordinates.

On recorded updates of 2 labels a client, 1 to 4 did about as well; 0.1 gave q up to 2.5, none at
all up to 11.
"""
_EDGE = 3.27
"""99.9 % point of Tracy-Widom (β = 1): one false factor per 1,000 rounds."""


@dataclass(frozen=True)
class FactorModel:
    """Model of moments as ΛΛᵀ + diag(σ²).

    Attributes:
        variances: σ², shape ``(n,)``.
        loadings: Λ, shape ``(n, factors)``.
        identified: whether ``factors`` explain all that the variables share; otherwise the
            rest of it is in ``variances``.
    """

    variances: Vector
    loadings: Matrix
    identified: bool


def factor_analysis(moments: Matrix, dimension: int, effective: float | None = None) -> FactorModel:
    """Return the factor model of n variables.

    The number of factors grows from 0 while the largest remaining eigenvalue of the whitened
    moments lies above the edge of noise, and never beyond the number that n variables identify
    (Ledermann's bound): too many factors do more harm than too few.

    Args:
        moments: second moments of n variables over ``dimension`` samples; a positive diagonal.
        dimension: d.
        effective: see :func:`effective_dimension`; None: d.

    Reference for the edge: Johnstone, On the distribution of the largest eigenvalue (Annals of
    Statistics, 2001).
    """
    n, scale = len(moments), np.diag(moments)
    correlations = moments / np.sqrt(np.outer(scale, scale))
    correlations[np.diag_indices(n)] += _RIDGE  # moments of few samples are singular
    edge = noise_edge(n, dimension)
    shares, factors = np.ones(n), 0
    values, vectors = _whitened(correlations, shares)
    # Add factors as long as pure noise would not have so large an eigenvalue.
    while values[factors] > edge and identifies(n, factors + 1):
        factors += 1
        shares = _fit(correlations, factors, _PRIOR / (effective or dimension))
        values, vectors = _whitened(correlations, shares)
    # Maximum likelihood at this Ψ: Λ = Ψ^½ U (Θ − I)^½, then back from correlations to moments.
    loadings = vectors[:, :factors] * np.sqrt(np.maximum(values[:factors] - 1, 0))
    loadings *= np.sqrt(shares * scale)[:, None]
    return FactorModel(shares * scale, loadings, bool(n > 2 and values[factors] <= edge))


def effective_dimension(updates: npt.NDArray[np.float32], moments: Matrix) -> float:
    """Return the equivalent number of normal coordinates for shared signal.

    A product of variables with kurtosis κ is as uncertain over d coordinates as one of normal
    variables over 2d / (κ − 1); the signal of a neural network sits in few of its coordinates.
    The largest κ counts, over the principal components beyond the edge of noise.

    Args:
        updates: float32, shape ``(n, d)``.
        moments: their second moments; a positive diagonal.
    """
    n, d = updates.shape
    scale = np.sqrt(np.diag(moments))
    values, vectors = np.linalg.eigh(moments / np.outer(scale, scale))
    shared = values > noise_edge(n, d)
    if not shared.any():
        return float(d)
    squares = ((vectors[:, shared] / scale[:, None]).T.astype(np.float32) @ updates) ** 2
    kurtosis = np.max((squares**2).mean(axis=1) / squares.mean(axis=1) ** 2)
    return float(d * min(1.0, 2 / max(kurtosis - 1, 1e-6)))


def spare_equations(n: int, factors: int) -> int:
    """Return the equations of n variables' moments beyond a factor model's unknowns.

    Half of (n − k)² − (n + k); Ledermann's bound is where it is 0 (Psychometrika 1937).

    >>> [spare_equations(n, 1) for n in (3, 4, 5)], spare_equations(6, 3)
    ([0, 2, 5], 0)
    """
    return ((n - factors) ** 2 - n - factors) // 2


def identifies(n: int, factors: int) -> bool:
    """Return whether n variables identify ``factors`` (Ledermann's bound).

    >>> [max(k for k in range(n) if identifies(n, k)) for n in (1, 2, 3, 5, 6, 20)]
    [0, 0, 1, 2, 3, 14]
    """
    return spare_equations(n, factors) >= 0


def noise_edge(n: int, dimension: int) -> float:
    """Return the 99.9 % point of pure noise's largest eigenvalue."""
    a, b = math.sqrt(max(dimension - 1, 1)), math.sqrt(n)
    spread = (a + b) * (1 / a + 1 / b) ** (1 / 3)
    return float(((a + b) ** 2 + _EDGE * spread) / dimension)


def _whitened(correlations: Matrix, shares: Vector) -> tuple[Vector, Matrix]:
    """Return eigenvalues, descending, and eigenvectors of Ψ^-1/2 R Ψ^-1/2."""
    root = np.sqrt(shares)
    values, vectors = np.linalg.eigh(correlations / np.outer(root, root))
    return values[::-1], vectors[:, ::-1]


def _fit(correlations: Matrix, factors: int, penalty: float) -> Vector:
    """Return each variable's unexplained share ψ of its variance.

    Minimises over ln ψ: Σ (θ − ln θ − 1) over the eigenvalues θ beyond the first ``factors``
    (Lawley and Maxwell, equation 4.18, its gradient 4.20) + ``penalty`` · Σ (c/ψ + ln ψ), which is
    least where ψ is the share c that the other variables leave unpredicted. Without the penalty a
    factor can become one client's own (a Heywood case): the client seems noiseless and gets all
    the weight. A prior on ψ is the remedy of Martin and McDonald, Bayesian estimation in
    unrestricted factor analysis (Psychometrika 1975).
    """
    from scipy.optimize import minimize

    unpredicted: Vector = 1 / np.diag(np.linalg.inv(correlations))

    def discrepancy(log_shares: Vector) -> tuple[float, Vector]:
        shares = np.exp(log_shares)
        values, vectors = _whitened(correlations, shares)
        rest = np.maximum(values[factors:], _RIDGE / 2)  # positive up to rounding
        # communal = diag(ΛΛᵀ): the factors' part of each variance.
        excess = np.maximum(values[:factors] - 1, 0)
        communal = shares * (vectors[:, :factors] ** 2 @ excess)
        value = np.sum(rest - np.log(rest) - 1) + penalty * np.sum(
            unpredicted / shares + log_shares
        )
        gradient = (communal + shares - np.diag(correlations)) / shares
        return float(value), gradient + penalty * (1 - unpredicted / shares)

    best = minimize(
        discrepancy,
        np.log(np.clip(unpredicted, FLOOR, 1)),
        jac=True,
        method="L-BFGS-B",
        bounds=[(math.log(FLOOR), 0.0)] * len(unpredicted),
        options={"maxiter": 500, "ftol": 1e-12},
    )
    shares: Vector = np.exp(best.x)
    return shares
