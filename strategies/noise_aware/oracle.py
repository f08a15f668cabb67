"""Oracle: weights by the true noise, a yardstick.

Malekmohammadi et al., Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), equation for the optimal weights: min Σ wᵢ²σᵢ² with Σ wᵢ = 1 has
wᵢ ∝ 1/σᵢ², and the aggregate's variance is then 1 / Σ (1/σᵢ²).

Threat model: none; the server receives the true noise. Only a simulation can run it: ``noise-std``
is disclosed by simulated profiles alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, HDPStrategy, State


def inverse_variance_weights(variances: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weights wᵢ ∝ 1/σᵢ², shape ``(n,)``.

    Sites of variance 0 share all the weight equally.

    >>> inverse_variance_weights(np.array([1.0, 4.0]))
    array([0.8, 0.2])
    >>> inverse_variance_weights(np.array([0.0, 4.0, 0.0]))
    array([0.5, 0. , 0.5])
    """
    exact = variances == 0
    if exact.any():
        precision = exact.astype(np.float64)
    else:
        # In units of the least variance: 1/σᵢ² alone could overflow.
        precision = variances.min() / variances
    weights: npt.NDArray[np.float64] = precision / precision.sum()
    return weights


class Oracle(HDPStrategy):
    """Weights by the true noise."""

    name = "oracle"
    constant_weights = True

    def declare(self) -> Declaration:
        """Declare the fact that weighs."""
        return Declaration(frozenset({"noise-std"}))

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the mean weighted by inverse true noise variances."""
        # Disclosed is that of round 1.
        now = self.terms.noise_factor(updates.server_round) / self.terms.noise_factor(1)
        noise_std = now * updates.disclosed["noise-std"]
        weights = inverse_variance_weights(noise_std**2)
        return state, Outcome(
            weighted_sum(weights, updates.updates), weights, {"noise_std": noise_std}
        )
