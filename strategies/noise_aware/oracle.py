"""Oracle: weights by the true noise, a yardstick.

Malekmohammadi et al., Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), equation for the optimal weights: min Σ wᵢ²σᵢ² with Σ wᵢ = 1 has
wᵢ ∝ 1/σᵢ², and the aggregate's variance is then 1 / Σ (1/σᵢ²).

Threat model: none; the server receives the true noise. Only a simulation can run it: ``noise-std``
is disclosed by simulated profiles alone.
"""

from __future__ import annotations

from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.inverse_variance import inverse_variance_weights
from strategies.core.base import Declaration, HDPStrategy, State


class Oracle(HDPStrategy):
    """Weigh each update by its true noise."""

    name = "oracle"

    def declare(self) -> Declaration:
        """Declare the fact that weighs."""
        return Declaration(frozenset({"noise-std"}), constant_weights=True)

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
