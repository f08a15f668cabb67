"""Gate for Anderson mixing of noisy residuals.

Mixing may extrapolate, or only average the noise and lag.

Residuals are rⱼ = fⱼ + εⱼ with f the map's own part and ε noise of a known energy Nⱼ = E‖εⱼ‖²,
drawn anew in every round. Mixing minimises πᵀGπ over the residuals' Gram matrix G; its mean is that
of the fⱼ plus diag(N). If N is large the least sum is the mean of all rounds: it averages the noise
of the residuals, and steps from the mean of old models, which has a larger residual. So mixing is
useful only if its point is the better one without the noise:

    ‖Σ πⱼfⱼ‖² < ‖f_m‖²,  m the present round.

With a share c of the noise counted, the energy is ‖Σ πⱼfⱼ‖² + c·Σ πⱼ²Nⱼ, to be compared with
‖f_m‖² + c·N_m. Both are linear in c, and at c = 1 mixing has the smaller one, since it minimises
it. So a fall at c = 0 is a fall for any share of the noise that harms the model.

The energy falls by G_mm − πᵀGπ. Of this fall the noise explains

    N_m − Σ πⱼ²Nⱼ + max_λ Σ 2πᵢπₖNᵢ·λ(1 − λ)^(k − i − 1) over i < k,  λ in [0, 1].

The last term bounds a bias: the model of round k holds εᵢ. With plain steps and a map that moves a
direction by the share λ of the way to its fixed point, fₖ holds −λ(1 − λ)^(k − i − 1)·εᵢ there, so
that rₖ·rᵢ is less than fₖ·fᵢ by that share of Nᵢ. The mean over all directions is at most the
largest, unless the map overshoots in many. Where noise is overestimated the test is the stricter.
"""

from __future__ import annotations

import math

import numpy as np

from hdpfl_flower.linalg.types import Matrix, Vector

ALARM = 1e-3
"""Probability per round of accepting mixing that is only equal."""
_SHARES = np.linspace(0, 1, 33)
"""λ at which the bias, a polynomial of degree m − 1, is evaluated."""


def explained_by_noise(weights: Vector, noise: Vector) -> float:
    """Return the largest fall of energy that noise explains.

    It is the fall by mixing of the last residual's noise.

    >>> explained_by_noise(np.array([0.5, 0.5]), np.array([1.0, 1.0]))  # averaging
    1.0
    >>> explained_by_noise(np.array([-1.0, 2.0]), np.array([1.0, 1.0]))  # extrapolation
    -4.0
    """
    m = len(weights)
    # Σ πᵢπₖNᵢ over the pairs of each gap k − i.
    pairs = [float(weights[: m - gap] * noise[: m - gap] @ weights[gap:]) for gap in range(1, m)]
    carried = max(
        sum(2 * pair * share * (1 - share) ** gap for gap, pair in enumerate(pairs))
        for share in _SHARES
    )
    return float(noise[-1] - weights**2 @ noise + carried)


def is_better(gram: Matrix, noise: Vector, weights: Vector, d: int) -> bool:
    """Return whether mixing reduces the residual without its noise.

    Args:
        gram: inner products of the residuals, the present one last, shape ``(m, m)``.
        noise: Nⱼ of each, or more, shape ``(m,)``.
        weights: π, shape ``(m,)``.
        d: coordinates, over which the noise spreads evenly.

    The fall of the energy must exceed the part explained by noise by its standard error times
    √χ²(m − 1, 1 − ``ALARM``): Scheffé's bound over all π, since the weights are chosen from the
    same residuals. False if a number is not finite.
    """
    from scipy.special import chdtri

    if len(gram) < 2 or not (np.isfinite(noise).all() and np.isfinite(gram).all()):
        return False
    explained = explained_by_noise(weights, noise)
    fall = float(gram[-1, -1] - weights @ gram @ weights)
    error = math.sqrt(_variance(gram, noise, weights) / d + 2 / d * explained**2)
    return fall - explained > math.sqrt(chdtri(len(gram) - 1, ALARM)) * error


def _variance(gram: Matrix, noise: Vector, weights: Vector) -> float:
    """Return d times the variance of the fall, from normal noise."""
    mixed = float(weights**2 @ noise)
    last = max(float(gram[-1, -1] - noise[-1]), 0.0)
    least = max(float(weights @ gram @ weights) - mixed, 0.0)
    bound = math.sqrt(last * least)
    both = float(np.clip(gram[-1] @ weights - weights[-1] * noise[-1], -bound, bound))
    # Of 2f_m·ε_m − 2f̄·Σπε, and of ‖ε_m‖² − ‖Σπε‖².
    linear = last * noise[-1] - 2 * both * weights[-1] * noise[-1] + least * mixed
    squares = -np.outer(weights, weights)
    squares[-1, -1] += 1
    return 4 * float(linear) + 2 * float(noise @ squares**2 @ noise)
