"""Federated linear regression under unequal privacy: FedHDP's second closed form.

FedHDP (federated learning with heterogeneous differential privacy), Section 3: client j holds
targets y = Fⱼ·φⱼ + v for its features Fⱼ, shape (n, d), with v ~ N(0, β²·I) and
φⱼ ~ N(φ, τ²·I). Its least-squares estimate φ̂ⱼ has covariance Aⱼ = β²·(FⱼᵀFⱼ)⁻¹ about φⱼ. What it
sends, what the server weighs and what a personal model is are as in ``point_estimation.py``.

With an orthogonal design, FⱼᵀFⱼ = n·I, each coordinate is point estimation with α² = β²/n, and all
of that file's formulas hold as they stand. With rows from N(0, I) they hold for the expectation
over the designs, α² = β²/(n − d − 1), where r and λ are one number for all clients, whatever design
each has drawn. :func:`matrix_lambda` is exact for any designs.

The paper's own derivation is in an appendix that we do not have; these follow from the normal
distributions alone and are tested against draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def least_squares(features: Floats, targets: Floats) -> Floats:
    """Return φ̂ = (FᵀF)⁻¹·Fᵀy, shape ``(d,)``.

    Args:
        features: F, shape ``(n, d)``, n ≥ d.
        targets: y, shape ``(n,)``.

    Raises:
        ValueError: the columns of F are not linearly independent.

    >>> least_squares(np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([3.0, 1.0]))
    array([2., 1.])
    """
    solution, _, rank, _ = np.linalg.lstsq(features, targets)
    if rank < features.shape[1]:
        raise ValueError("the columns of 'features' are not linearly independent")
    return solution.astype(np.float64)


def orthogonal_alpha2(beta2: float, records: int) -> float:
    """Return α² = β²/n, of each coordinate of φ̂ⱼ where FⱼᵀFⱼ = n·I.

    Args:
        beta2: β² > 0, variance of a target about its mean.
        records: n ≥ 1.

    >>> orthogonal_alpha2(4.0, 16)
    0.25
    """
    return beta2 / records


def gaussian_alpha2(beta2: float, records: int, dimension: int) -> float:
    """Return α² = β²/(n − d − 1), the mean over designs whose rows are N(0, I).

    (FᵀF)⁻¹ is then inverse-Wishart with mean I/(n − d − 1).

    Args:
        beta2: β² > 0.
        records: n.
        dimension: d ≥ 1.

    Raises:
        ValueError: n ≤ d + 1: the mean does not exist.

    >>> gaussian_alpha2(4.0, 19, 2)
    0.25
    """
    if records <= dimension + 1:
        raise ValueError("'records' must be more than 'dimension' + 1")
    return beta2 / (records - dimension - 1)


def precision_mean(estimates: Sequence[Floats], covariances: Sequence[Floats]) -> Floats:
    """Return P⁻¹·Σ Vᵢ⁻¹·ψᵢ with P = Σ Vᵢ⁻¹, shape ``(d,)``: the least variance without bias.

    Args:
        estimates: ψᵢ, each of shape ``(d,)``; not empty.
        covariances: Vᵢ of each about φ, shape ``(d, d)``: Aᵢ + τ²·I and its noise.

    >>> precision_mean([np.array([1.0]), np.array([5.0])], [np.eye(1), 3 * np.eye(1)])
    array([2.])
    """
    inverses = [np.linalg.inv(each) for each in covariances]
    weighted = [inverse @ each for inverse, each in zip(inverses, estimates, strict=True)]
    mean: Floats = np.linalg.solve(np.sum(inverses, axis=0), np.sum(weighted, axis=0))
    return mean


def matrix_lambda(own: Floats, tau2: float, others: Sequence[Floats]) -> Floats:
    """Return Λ = A·(τ²·I + P⁻¹)⁻¹, P = Σ Vᵢ⁻¹, shape ``(d, d)``; exact for any designs and levels.

    The personal estimate (I + Λ)⁻¹·(φ̂ⱼ + Λ·θ), θ the :func:`precision_mean` of the *other*
    clients, is then the posterior mean of φⱼ (conjugate normals). For multiples of the identity it
    is ``point_estimation.exact_lambda``.

    Args:
        own: A of the client itself, shape ``(d, d)``.
        tau2: τ².
        others: Vᵢ of each other client's estimate about φ, shape ``(d, d)``; not empty.

    >>> matrix_lambda(np.eye(1), 0.5, [2 * np.eye(1)] * 4)
    array([[1.]])
    """
    precision = np.sum([np.linalg.inv(each) for each in others], axis=0)
    spread = tau2 * np.eye(len(own)) + np.linalg.inv(precision)
    found: Floats = own @ np.linalg.inv(spread)
    return found


def personal_estimate(own: Floats, shared: Floats, pull: Floats) -> Floats:
    """Return (I + Λ)⁻¹·(φ̂ⱼ + Λ·θ), shape ``(d,)``.

    Args:
        own: φ̂ⱼ, shape ``(d,)``.
        shared: θ, shape ``(d,)``.
        pull: Λ, shape ``(d, d)``.

    >>> personal_estimate(np.array([1.0]), np.array([3.0]), np.eye(1))
    array([2.])
    """
    return np.linalg.solve(np.eye(len(own)) + pull, own + pull @ shared).astype(np.float64)
