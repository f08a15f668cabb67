"""Checks of whether one round separates signal from noise; they define ``identified``.

Factor analysis returns a number for every round, also if it is not the noise: few clients leave
the model no equation to spare, a factor may be one client's own (a Heywood case: its noise is
estimated at the floor), levels that differ a millionfold drown in each other's errors, and signal
that a client shares with no other counts as its noise. The promise is about q = Σw²σ² · Σ1/σ² of
the weights w ∝ 1/σ̂²: if none of these problems is found, q ≤ 1.1 in 95 % of rounds.

A limit of every round: signal means the part that clients share. If none of a client's
signal were shared, it would count as noise, and no check here would detect it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hdpfl_flower.estimators.factor_analysis import FLOOR, FactorModel, spare_equations
from hdpfl_flower.linalg.types import Matrix, Vector

FEWEST = 5
"""Clients below which no round is called identified."""
SPARE = 2
"""Minimum equations of the moments beyond the model's unknowns."""
MAD_NOISE = 2.72
"""Ratio of variances, ln MAD² to ln mean square of normal residuals: 5.44/2."""
_NEAR_FLOOR = 10.0
_EXPECTED = 0.02
"""Largest expected q − 1 by chance alone."""
_PRIVATE = 0.01
"""Share of each client's signal that may be private, within ``_COST``."""
_COST = 0.05
"""Largest cost in q of this private share."""


def relative_errors(model: FactorModel, effective: float) -> Matrix | None:
    """Return the covariance ``(n, n)`` of the uniquenesses' relative errors.

    It is (2/N)·(ψᵢψⱼφᵢⱼ²)⁻¹ with φ = Ψ⁻¹ − Ψ⁻¹Λ(ΛᵀΨ⁻¹Λ)⁻¹ΛᵀΨ⁻¹, of maximum likelihood for large N
    (Lawley and Maxwell, Factor Analysis as a Statistical Method, 1971, chapter 5).

    Args:
        model: of n variables.
        effective: N, samples.

    Returns:
        None if the uniquenesses cannot be separated, as when two variables have a factor for
        themselves.
    """
    n, factors = model.loadings.shape
    # off = Ψ^½ φ Ψ^½: the projection outside the space of the scaled loadings.
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
    """Return the expected q − 1 by chance, to second order.

    It is the variance of the :func:`relative_errors` under the weights; infinite if the
    uniquenesses cannot be separated.
    """
    covariance = relative_errors(model, effective)
    if covariance is None:
        return float("inf")
    weights = model.variances.min() / model.variances
    weights /= weights.sum()
    return float(max(weights @ np.diag(covariance) - weights @ covariance @ weights, 0.0))


def cost_of_private_signal(levels: Vector, moments: Matrix) -> float:
    """Return q − 1 if a hundredth of each signal were private.

    This part of a client's signal would count as its noise.

    Args:
        levels: estimated variances, shape ``(n,)``, positive.
        moments: second moments, shape ``(n, n)``.

    Returns:
        q − 1 ≥ 0; infinite if so little signal could be the whole level.
    """
    true = levels - _PRIVATE * np.maximum(np.diag(moments) - levels, 0)
    if np.any(true <= 0):
        return float("inf")
    weights = levels.min() / levels
    weights /= weights.sum()
    # q = Σw²σ² · Σ1/σ² at the true levels; 1 for the optimal weights.
    return float((weights**2 @ true) * (1 / true).sum() - 1)


def doubt(model: FactorModel, levels: Vector, moments: Matrix, effective: float) -> str:
    """Return why a round does not identify the noise; else empty.

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
    return next((reason for reason, applies in checks.items() if applies()), "")
