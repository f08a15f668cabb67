"""WeiAvg: weights by the ε that sites disclose.

Liu, Lou, Xiong, Liu and Meng, Projected Federated Averaging with Heterogeneous Differential Privacy
(VLDB 2021), the weighted average baseline: wᵢ = εᵢ / Σ ε. Its contributions list says the opposite
("tighter budgets get larger weight"); the equations and the authors' code do as here.

Threat model: an untrusted server to which each site discloses its ε, which the updates' own (ε, δ)
does not cover. A site may overstate it: no ε counts for more than 20, and ``inf`` counts as 20. A
site that does not disclose its ε is left out of the run, with a warning that names it.
"""

from __future__ import annotations

from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.by_epsilon import epsilon_weights
from strategies.core.base import Declaration, HDPStrategy, State


class WeiAvg(HDPStrategy):
    """Weight each site by its disclosed ε."""

    name = "weiavg"

    def declare(self) -> Declaration:
        """Declare the fact that weighs."""
        return Declaration(frozenset({"epsilon"}), constant_weights=True)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the mean of the updates, weighted by disclosed ε."""
        weights = epsilon_weights(updates.disclosed["epsilon"])
        return state, Outcome(weighted_sum(weights, updates.updates), weights)
