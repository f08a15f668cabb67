"""Anderson mixing by the Gram matrix of past residuals.

Anderson, Iterative Procedures for Nonlinear Integral Equations (J. ACM 1965); type II of Fang and
Saad, Two Classes of Multisecant Methods for Nonlinear Acceleration (2009). Of a map T and points
xⱼ with residuals rⱼ = T(xⱼ) − xⱼ, the next point is Σ πⱼT(xⱼ) where π minimises ‖Σ πⱼrⱼ‖², Σπ = 1.

With G the Gram matrix of the residuals the weights solve the bordered system

    [ G + ρg·I  1 ] [π]   [0]
    [ 1ᵀ        0 ] [λ] = [1],    g = max Gⱼⱼ,

of which π = G⁺1/(1ᵀG⁺1) is the solution only if G is regular (or 1 in its range): otherwise the
pseudoinverse drops exactly the directions without a residual.
"""

from __future__ import annotations

import numpy as np

from hdpfl_flower.linalg.types import Matrix, Vector

RIDGE = 1e-12
"""ρ for float64 residuals, above a Gram matrix's rounding error.

Far below the values that it measures.
"""


def mixing_weights(gram: Matrix, ridge: float = RIDGE) -> Vector:
    """Return weights π, shape ``(m,)``, sum 1, minimising πᵀGπ + ρg‖π‖².

    Args:
        gram: inner products of the residuals, finite, shape ``(m, m)``, m ≥ 1.
        ridge: ρ > 0, relative to g, the largest diagonal entry.

    The ridge makes the system regular for every G. If several weights leave no residual, it
    takes those of the least norm; if all residuals are 0, equal ones.

    >>> mixing_weights(np.diag([1.0, 3.0])).round(6)
    array([0.75, 0.25])
    >>> mixing_weights(np.zeros((2, 2)))
    array([0.5, 0.5])
    """
    m, largest = len(gram), float(np.max(np.diag(gram)))
    bordered = np.ones((m + 1, m + 1))
    bordered[m, m] = 0
    bordered[:m, :m] = gram / (largest if largest > 0 else 1.0) + ridge * np.eye(m)
    solved = np.linalg.solve(bordered, np.append(np.zeros(m), 1.0))[:m]
    weights: Vector = solved / solved.sum()  # 1 but for rounding
    return weights
