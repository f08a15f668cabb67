"""Federated point estimation under unequal privacy: FedHDP's closed forms.

FedHDP (federated learning with heterogeneous differential privacy), Section 3: client j of N holds
n records of the normal N(φⱼ, β²), φⱼ = φ + N(0, τ²). Its mean φ̂ⱼ has variance α² = β²/n about φⱼ,
so σ² = α² + τ² about φ. N_p private clients send φ̂ⱼ + N(0, N_p·γ²), so that a mean over them has
noise γ², the other N − N_p opt out and send φ̂ⱼ. Client j's personal estimate is
(φ̂ⱼ + λ·θ)/(1 + λ).
Linear regression with an orthogonal design, FᵀF = n·I, is this problem in each coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Federation:
    """The public constants of the problem.

    Attributes:
        clients: N.
        private: N_p, those that add noise, 0 to N.
        alpha2: α² > 0, variance of a client's own mean.
        tau2: τ² ≥ 0, variance between the clients.
        gamma2: γ² ≥ 0, noise in the mean of the private clients.
    """

    clients: int
    private: int
    alpha2: float
    tau2: float
    gamma2: float

    @property
    def spread(self) -> float:
        """Return σ² = α² + τ²."""
        return self.alpha2 + self.tau2

    @property
    def noise(self) -> float:
        """Return N_p·γ², the noise of one private client."""
        return self.private * self.gamma2


def best_ratio(federation: Federation) -> float:
    """Return r* = σ²/(σ² + N_p·γ²): what a private client counts, an opted-out one being 1.

    >>> best_ratio(Federation(clients=10, private=8, alpha2=1.0, tau2=1.0, gamma2=0.25))
    0.5
    """
    return federation.spread / (federation.spread + federation.noise)


def variance(federation: Federation, ratio: float) -> float:
    """Return the variance of the estimate of φ whose private clients count ``ratio``.

    >>> f = Federation(clients=10, private=8, alpha2=1.0, tau2=1.0, gamma2=0.25)
    >>> round(variance(f, best_ratio(f)), 9), variance(f, 1.0)
    (0.333333333, 0.36)
    """
    loose, strict = federation.clients - federation.private, federation.private
    total = loose + ratio * strict
    noisy = federation.spread + federation.noise
    return (loose * federation.spread + ratio**2 * strict * noisy) / total**2


def opted_out_lambda(federation: Federation) -> float:
    """Return λ* of a client that opted out: α²/τ²; ``inf`` where clients do not differ."""
    return federation.alpha2 / federation.tau2 if federation.tau2 else math.inf


def published_private_lambda(federation: Federation) -> float:
    """Return the paper's λ* of a private client, with U = τ²/α² and G = N_pγ²/α².

    The best one only where the client takes its own noise out of θ: see :func:`personal_error`.

    >>> f = Federation(clients=10, private=10, alpha2=1.0, tau2=1.0, gamma2=0.1)
    >>> math.isclose(published_private_lambda(f), 10 / (10 * 1 + 1))
    True
    """
    n, loose = federation.clients, federation.clients - federation.private
    u, g = federation.tau2 / federation.alpha2, federation.noise / federation.alpha2
    below = n * u * (u + 1) + (loose + 1) * u * g + g
    return (n + n * u + loose * g) / below if below else math.inf


def personal_error(federation: Federation, ratio: float, pull: float, *, private: bool) -> float:
    """Return the mean square error of (φ̂ⱼ + λ·θ)/(1 + λ) about φⱼ, client j's noise in θ.

    Args:
        federation: the problem.
        ratio: what a private client counts in θ.
        pull: λ ≥ 0.
        private: whether client j is private; there must be one of its kind.

    >>> f = Federation(clients=10, private=8, alpha2=1.0, tau2=1.0, gamma2=0.25)
    >>> at = [personal_error(f, 0.5, x * opted_out_lambda(f), private=False) for x in (0.9, 1, 1.1)]
    >>> at[1] < min(at[0], at[2])
    True
    """
    strict = federation.private
    total = federation.clients - strict + ratio * strict
    mine = (ratio if private else 1.0) / total
    on_own = (1 + pull * mine) / (1 + pull)
    rest = variance(federation, ratio) - mine**2 * federation.spread
    error = on_own**2 * federation.alpha2 + (1 - on_own) ** 2 * federation.tau2
    return error + (pull / (1 + pull)) ** 2 * rest
