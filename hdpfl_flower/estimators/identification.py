"""Whether one round separates signal from noise: what ``identified`` promises.

Factor analysis returns a number for every round, whether or not it is the noise: few clients leave
the model no equation to spare, a factor may be one client's own (a Heywood case: its noise is
estimated at the floor), levels that differ a millionfold drown in each other's errors, and signal
that a client shares with nobody counts as its noise. The promise is about q = Σw²σ² · Σ1/σ² of the
weights w ∝ 1/σ̂²: where nothing of the above is found, q ≤ 1.1 in 95 % of rounds
(``python -m benchmarks signals``).

What no round can show: signal is what clients share. If none of a client's
signal were shared, it would be noise to everybody, and no check here would see it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hdpfl_flower.estimators.factor_analysis import FLOOR, FactorModel, spare_equations
from hdpfl_flower.linalg.types import Matrix, Vector

FEWEST = 5
"""Clients below which no round is called identified."""
SPARE = 2
"""Equations of the moments beyond the unknowns of the model, at least."""
MAD_NOISE = 2.72
"""Variance of ln MAD² over that of ln of a mean square, for normal residuals: 5.44 / 2."""
_NEAR_FLOOR = 10.0
_EXPECTED = 0.02
"""The largest expected q − 1 by chance alone."""
_PRIVATE = 0.01
"""Share of every client's signal that it may have for itself …"""
_COST = 0.05
"""… at this cost in q."""


def relative_errors(model: FactorModel, effective: float) -> Matrix | None:
    """Return the covariance of the relative errors of a model's uniquenesses, shape ``(n, n)``.

    It is (2/N)·(ψᵢψⱼφᵢⱼ²)⁻¹ with φ = Ψ⁻¹ − Ψ⁻¹Λ(ΛᵀΨ⁻¹Λ)⁻¹ΛᵀΨ⁻¹, of maximum likelihood for large N
    (Lawley and Maxwell, Factor Analysis as a Statistical Method, 1971, chapter 5).

    Args:
        model: of n variables.
        effective: N, samples.

    Returns:
        None where the uniquenesses cannot be separated, as where two variables have a factor for
        themselves.
    """
    n, factors = model.loadings.shape
    # off = Ψ^½ φ Ψ^½: the projection beside the space of the scaled loadings.
    off: Matrix = np.eye(n)
    if factors:
        scaled = model.loadings / np.sqrt(model.variances)[:, None]
        directions, sizes, _ = np.linalg.svd(scaled, full_matrices=False)
        directions = directions[:, sizes > 0]
        off -= directions @ directions.T
    information = off**2
    if np.linalg.cond(information) > 1e12:
        return None
    covariance: Matrix = 2 / effective * np.linalg.inv(information).astype(np.float64)
    return covariance


def expected_excess(model: FactorModel, effective: float) -> float:
    """Return the mean of q − 1 that chance alone leaves, to second order.

    It is the variance of the :func:`relative_errors` under the weights; infinite where the
    uniquenesses cannot be separated.
    """
    covariance = relative_errors(model, effective)
    if covariance is None:
        return float("inf")
    weights = model.variances.min() / model.variances
    weights /= weights.sum()
    return float(max(weights @ np.diag(covariance) - weights @ covariance @ weights, 0.0))


def cost_of_private_signal(levels: Vector, moments: Matrix) -> float:
    """Return q − 1 if a hundredth of each client's signal were its own and counted as its noise.

    Args:
        levels: estimated variances, shape ``(n,)``, positive.
        moments: second moments, shape ``(n, n)``.

    Returns:
        q − 1 ≥ 0; infinite where so little signal could be all of a level.
    """
    true = levels - _PRIVATE * np.maximum(np.diag(moments) - levels, 0)
    if np.any(true <= 0):
        return float("inf")
    weights = levels.min() / levels
    weights /= weights.sum()
    # q = Σw²σ² · Σ1/σ² at the true levels; 1 for the optimal weights.
    return float((weights**2 @ true) * (1 / true).sum() - 1)


def doubt(model: FactorModel, levels: Vector, moments: Matrix, effective: float) -> str:
    """Return why a round does not identify its clients' noise; empty where it does.

    Args:
        model: the factor model of the moments.
        levels: the variances that are returned, of the model or of its residuals, shape ``(n,)``.
        moments: second moments, shape ``(n, n)``.
        effective: the number of normal coordinates of the same information, see
            :func:`~hdpfl_flower.estimators.factor_analysis.effective_dimension`.
    """
    n, factors = model.loadings.shape
    if not model.identified:
        return "more shared signal than so few clients separate from noise"
    checks: dict[str, Callable[[], bool]] = {
        f"fewer than {FEWEST} clients": lambda: n < FEWEST,
        "no equation to spare for so many shared factors": lambda: (
            spare_equations(n, factors) < SPARE
        ),
        "a level at its floor": lambda: bool(
            np.any(levels <= _NEAR_FLOOR * FLOOR * np.diag(moments))
        ),
        "levels that chance alone may turn": lambda: (
            not expected_excess(model, effective) <= _EXPECTED
        ),
        "a signal so strong that a hundredth of it, if private, would count as noise": lambda: (
            not cost_of_private_signal(levels, moments) <= _COST
        ),
    }
    return next((reason for reason, found in checks.items() if found()), "")
