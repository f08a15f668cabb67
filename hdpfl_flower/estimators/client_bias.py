"""Weights that estimate a mean of all clients' signals with the least error, from noisy sums.

Over the rounds each client i sends its signal mᵢ with noise of its own. A mean Σ pᵢmᵢ with other
weights than the target's qᵢ has a bias ‖Σ (pᵢ − qᵢ)mᵢ‖, which adds up over the rounds, and noise,
which averages out. The bias is a quadratic form of the inner products ⟨mᵢ, mⱼ⟩;
:func:`difference_factors` estimates these, up to what all share, from the sums of the uploads, and
:func:`least_error_weights` returns the weights of the least sum of both.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.threads import one_thread

Floats = npt.NDArray[np.float64]

FALSE_ALARM = 0.01
"""Chance that noise alone counts as a difference, in a block of a round."""
_QUANTILE = 2.0234
"""Quantile 1 − ``FALSE_ALARM`` of the law of Tracy and Widom of order 1 (Bejan 2005, table)."""
_TRIES = 3
"""Passes that may change several coordinates without progress before they change one at a time."""
_PASSES = 10
"""Passes a client at most; rounding alone could need more."""
_ROUNDING = 1e-9
"""Share of 1 below which a condition counts as met."""


def difference_factors(sums: npt.NDArray[np.floating], rounds: Floats, noise: Floats) -> Floats:
    """Return F with ‖Fᵀw‖² an estimate of ‖Σ wᵢmᵢ‖² for all w with Σw = 0, mᵢ the mean signals.

    The mean upload of client i is its signal and noise of variance ``noise[i]``/``rounds[i]``² a
    coordinate. In units of that noise, uploads of clients that all have one signal are a multiple
    of u = 1/sd and noise. Without the component along u, directions of their Gram matrix whose
    eigenvalues exceed the largest of noise alone are differences between clients. They are kept as
    they are, with the noise in them: an estimate to the safe side, for it only moves the weights
    to the target.

    Args:
        sums: of each client's uploads, shape ``(n, d)``.
        rounds: uploads in each sum, positive, shape ``(n,)``.
        noise: the sum of their noise variances a coordinate, positive, shape ``(n,)``.

    Returns:
        Shape ``(n, r)``, r < n the number of directions kept. Where all clients have one signal
        r > 0 in about ``FALSE_ALARM`` of all cases, in less where n or d is small.

    Reference: Johnstone, On the Distribution of the Largest Eigenvalue in Principal Components
    Analysis (Annals of Statistics 2001), for the centre and the scale.
    """
    n, d = sums.shape
    scales = np.sqrt(noise) / rounds
    common = 1 / scales / np.linalg.norm(1 / scales)
    with one_thread():
        units = sums / np.sqrt(noise)[:, None]
        # Of orthonormal rows noise stays independent: n − 1 dimensions of it are left.
        units -= np.outer(common, common @ units)
        values, vectors = np.linalg.eigh(units @ units.T)
    kept = values > _largest_of_noise(n - 1, d)
    values = values - d
    factors: Floats = scales[:, None] * vectors[:, kept] * np.sqrt(values[kept])
    return factors


def _largest_of_noise(n: int, d: int) -> float:
    """Return what the largest eigenvalue of n × n products of noise exceeds by chance alone."""
    wide, high = math.sqrt(max(d - 1, 1)), math.sqrt(max(n, 1))
    scale = (wide + high) * math.cbrt(1 / wide + 1 / high)
    return (wide + high) ** 2 + _QUANTILE * scale


def least_error_weights(target: Floats, factors: Floats, noise: Floats) -> Floats:
    """Return p ≥ 0, Σp = 1, of the least ‖Fᵀ(p − q)‖² + Σ pᵢ²·noiseᵢ, shape ``(n,)``.

    On Σp = 1 the error is pᵀQp with Q = GGᵀ + diag(noise), G = F − 1(Fᵀq)ᵀ. With p = x/Σx the
    least is where x ≥ 0, Qx ≥ 1 and xᵢ(Qx − 1)ᵢ = 0: a linear complementarity problem, solved by
    block principal pivoting (Júdice and Pires, Computers & Operations Research 1994), which ends
    because Q is positive definite. A pass takes n·r² operations.

    Args:
        target: q, convex, shape ``(n,)``.
        factors: F, shape ``(n, r)``.
        noise: shape ``(n,)``, positive.

    >>> least_error_weights(np.array([0.5, 0.5]), np.zeros((2, 0)), np.array([1.0, 4.0]))
    array([0.8, 0.2])
    >>> least_error_weights(np.array([0.5, 0.5]), 1e3 * np.eye(2), np.array([1.0, 4.0])).round(3)
    array([0.5, 0.5])
    """
    shifted = factors - factors.T @ target
    # In units of the noise, which differs a million times: x = y/√noise.
    scaled, ones = shifted / np.sqrt(noise)[:, None], 1 / np.sqrt(noise)
    free, fewest, tries = np.ones(len(target), dtype=np.bool_), len(target) + 1, _TRIES
    solution = ones
    with one_thread():
        for _ in range(_PASSES * len(target)):
            solution = _on_support(scaled, ones, free)
            slack = scaled @ (scaled.T @ solution) - ones
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
    found = np.maximum(solution, 0) * ones
    weights: Floats = found / found.sum()
    return weights


def _on_support(scaled: Floats, ones: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Return y of (HHᵀ + I)y = o on the free coordinates, 0 elsewhere, by a system of r × r."""
    part, right = scaled[free], ones[free]
    inner = np.eye(scaled.shape[1]) + part.T @ part
    solution = np.zeros(len(free))
    solution[free] = right - part @ np.linalg.solve(inner, part.T @ right)
    return solution
