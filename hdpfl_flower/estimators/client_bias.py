"""Weights that estimate a mean of all clients' signals with the least error, from noisy sums.

Over the rounds each client i sends its signal mᵢ with noise of its own. A mean Σ pᵢmᵢ with other
weights than the target's qᵢ has a bias ‖Σ (pᵢ − qᵢ)mᵢ‖, which adds up over the rounds, and noise,
which averages out. :func:`differences` estimates the differences between clients and the part that
noise hides, and :func:`least_error_weights` returns the weights of the least sum of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.threads import one_thread

Floats = npt.NDArray[np.float64]

FALSE_ALARM = 0.01
"""Chance that noise alone counts as a difference, of a block or of a client, in a round."""
_QUANTILE = 2.0234
"""Quantile 1 − ``FALSE_ALARM`` of the law of Tracy and Widom of order 1 (Bejan 2005, table)."""
_COLUMNS = 4_096
"""Coordinates that are in float64 at once."""
_TRIES = 3
"""Passes that may change several coordinates without progress before they change one at a time."""
_PASSES = 10
"""Passes a client at most; rounding alone could need more."""
_ROUNDING = 1e-9
"""Share of 1 below which a condition counts as met."""


@dataclass(frozen=True)
class ClientDifferences:
    """Estimate of the differences between clients, with its uncertainty.

    For all w with Σw = 0, ‖Fᵀw‖² + Σ wᵢ²hᵢ estimates ‖Σ wᵢmᵢ‖².

    Attributes:
        factors: F, each client's difference in the r < n directions seen, shape ``(n, r)``.
        hidden: hᵢ, the expected squared length of its error, shape ``(n,)``, that noise hides.
    """

    factors: Floats
    hidden: Floats

    def times(self, weight: float) -> ClientDifferences:
        """Return the differences with their squares counted ``weight`` times."""
        return ClientDifferences(math.sqrt(weight) * self.factors, weight * self.hidden)


def differences(sums: npt.NDArray[np.floating], rounds: Floats, noise: Floats) -> ClientDifferences:
    """Estimate the differences between clients' mean signals mᵢ, up to a shared part.

    The mean upload of client i is its signal mᵢ and noise of variance eᵢ = ``noise[i]``/
    ``rounds[i]``² a coordinate. In units of that noise, uploads of clients that all have one signal
    are a multiple of u = 1/sd and noise. Without the component along u, the directions of their
    Gram matrix with eigenvalues above the largest of noise alone are differences between clients.

    A client's component in direction k holds noise of eᵢ; the larger of two shares is kept:

    * τₖ²/(τₖ² + eᵢ), the posterior mean where differences have the variance τₖ², which the precise
      clients decide (DerSimonian and Laird's estimate);
    * 1 − χ²·eᵢ/‖Fᵢ‖², the factor of James and Stein with the quantile of noise alone in place of
      its mean: a noisy client that alone differs keeps the part that is surely its own.

    That share of eᵢ, summed over the directions, is the variance of the kept part, ``hidden``.

    Args:
        sums: of each client's uploads, shape ``(n, d)``.
        rounds: uploads in each sum, positive, shape ``(n,)``.
        noise: the sum of their noise variances a coordinate, positive, shape ``(n,)``.

    Returns:
        r directions; where all clients have one signal, r > 0 in about ``FALSE_ALARM`` of all
        cases, in less where n or d is small. No measured difference, no hidden one.

    References: Johnstone, On the Distribution of the Largest Eigenvalue in Principal Components
    Analysis (Annals of Statistics 2001), for the centre and the scale; DerSimonian and Laird,
    Meta-analysis in Clinical Trials (Controlled Clinical Trials 1986); James and Stein, Estimation
    with Quadratic Loss (Berkeley Symposium 1961).
    """
    from scipy.special import chdtri

    n, d = sums.shape
    scales = np.sqrt(noise) / rounds
    common = 1 / scales / np.linalg.norm(1 / scales)
    with one_thread():
        units = _products(sums) / np.outer(np.sqrt(noise), np.sqrt(noise))
        # Of orthonormal rows noise stays independent: n − 1 dimensions of it are left.
        apart = np.eye(n) - np.outer(common, common)
        values, vectors = np.linalg.eigh(apart @ units @ apart)
    seen = values > _largest_of_noise(n - 1, d)
    excess = values[seen] - d
    factors: Floats = scales[:, None] * vectors[:, seen] * np.sqrt(excess)
    if not len(excess):
        return ClientDifferences(factors, np.zeros(n))
    variances = np.square(scales)
    precision = 1 / variances
    # E Σ |mᵢ − m̄|²/eᵢ of differences of the variance τ², m̄ the mean by precision.
    pooled = excess / (precision.sum() - np.square(precision).sum() / precision.sum())
    squares = np.maximum(np.square(factors).sum(axis=1), np.finfo(float).tiny)
    sure_share = 1 - chdtri(len(excess), FALSE_ALARM) * variances / squares
    share = np.maximum(pooled / (pooled + variances[:, None]), sure_share[:, None])
    return ClientDifferences(factors * share, share.sum(axis=1) * variances)


def _products(rows: npt.NDArray[np.floating]) -> Floats:
    """Return the rows' inner products in float64, of which no more than a few columns exist."""
    products = np.zeros((len(rows), len(rows)))
    for first in range(0, rows.shape[1], _COLUMNS):
        block = rows[:, first : first + _COLUMNS].astype(np.float64)
        products += block @ block.T
    return products


def _largest_of_noise(n: int, d: int) -> float:
    """Return the bound that the largest eigenvalue of noise exceeds by chance alone."""
    wide, high = math.sqrt(max(d - 1, 1)), math.sqrt(max(n, 1))
    scale = (wide + high) * math.cbrt(1 / wide + 1 / high)
    return (wide + high) ** 2 + _QUANTILE * scale


def least_error_weights(target: Floats, differ: ClientDifferences, noise: Floats) -> Floats:
    """Return p ≥ 0, Σp = 1, of the least ‖Fᵀ(p − q)‖² + Σ (pᵢ − qᵢ)²hᵢ + Σ pᵢ²·noiseᵢ.

    On Σp = 1 the error is pᵀQp. With E = diag(h + noise), G = F − 1(Fᵀq)ᵀ, s = Σ qᵢ²hᵢ and
    v = h∘q/s it is Q = E + GGᵀ + s(1 − v)(1 − v)ᵀ − s·vvᵀ: diagonal, and of rank r + 2 besides.
    With p = x/Σx the least is where x ≥ 0, Qx ≥ 1 and xᵢ(Qx − 1)ᵢ = 0: a linear complementarity
    problem, solved by block principal pivoting (Júdice and Pires, Computers & Operations Research
    1994), which ends because Q is positive definite. A pass takes n·r² operations.

    Args:
        target: q, convex, shape ``(n,)``.
        differ: F and h.
        noise: the expected squared length of each client's noise, d·σᵢ² of σᵢ² a coordinate, shape
            ``(n,)``, positive: the unit of the squared differences.

    Returns:
        Shape ``(n,)``.

    >>> half, none = np.array([0.5, 0.5]), np.zeros(2)
    >>> least_error_weights(half, ClientDifferences(np.zeros((2, 0)), none), np.array([1.0, 4.0]))
    array([0.8, 0.2])
    >>> far = ClientDifferences(1e3 * np.eye(2), none)
    >>> least_error_weights(half, far, np.array([1.0, 4.0])).round(3)
    array([0.5, 0.5])
    """
    n, hidden = len(target), differ.hidden * target
    columns, signs = [differ.factors - differ.factors.T @ target], np.ones(differ.factors.shape[1])
    apart = float(hidden @ target)
    if apart > 0:
        beside = hidden / apart
        columns += [math.sqrt(apart) * np.stack([1 - beside, beside], axis=1)]
        signs = np.append(signs, [1.0, -1.0])
    # In units of the diagonal, which differs a million times: x = y/√E.
    ones = 1 / np.sqrt(differ.hidden + noise)
    scaled = np.concatenate(columns, axis=1) * ones[:, None]
    free, fewest, tries = np.ones(n, dtype=np.bool_), n + 1, _TRIES
    solution = ones
    with one_thread():
        for _ in range(_PASSES * n):
            solution = _on_support(scaled, signs, ones, free)
            slack = scaled @ (signs * (scaled.T @ solution)) - ones
            wrong = np.flatnonzero(np.where(free, solution < 0, slack < -_ROUNDING * ones))
            if not len(wrong):
                break
            if len(wrong) < fewest:
                fewest, tries = len(wrong), _TRIES
            elif tries:
                tries -= 1
            else:
                wrong = wrong[-1:]  # Murty's rule: one at a time cannot cycle
            free[wrong] = ~free[wrong]
    raw = np.maximum(solution, 0) * ones
    weights: Floats = raw / raw.sum()
    return weights


def _on_support(scaled: Floats, signs: Floats, ones: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Return y of (HSHᵀ + I)y = o on the free coordinates, 0 elsewhere, by a system of r × r.

    H is ``scaled`` and S = diag(``signs``), which is its own inverse.
    """
    rows, right = scaled[free], ones[free]
    inner = np.diag(signs) + rows.T @ rows
    solution = np.zeros(len(free))
    solution[free] = right - rows @ np.linalg.solve(inner, rows.T @ right)
    return solution
