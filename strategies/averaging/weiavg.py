"""WeiAvg: weights by the ε that sites disclose.

Liu, Lou, Xiong, Liu and Meng, Projected Federated Averaging with Heterogeneous Differential Privacy
(VLDB 2021), the weighted average baseline: wᵢ = εᵢ / Σ ε. Its contributions list says the opposite
("tighter budgets get larger weight"); the equations and the authors' code do as here.

Threat model: an untrusted server to which each site discloses its ε, which the updates' own (ε, δ)
does not cover. A site may overstate it: no ε counts for more than 20, and ``inf`` counts as 20. A
site that does not disclose its ε is left out of the run, with a warning that names it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, HDPStrategy, State
from strategies.core.public_split import counted_epsilons


def epsilon_weights(epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return weights ∝ min(εᵢ, 20), shape ``(n,)``; equal if every ε is 0.

    >>> epsilon_weights(np.array([1.0, 3.0]))
    array([0.25, 0.75])
    """
    counted = counted_epsilons(epsilons)
    if not counted.any():
        counted = np.ones(len(epsilons))
    weights: npt.NDArray[np.float64] = counted / counted.sum()
    return weights


class WeiAvg(HDPStrategy):
    """Weight each site by its disclosed ε."""

    name = "weiavg"
    constant_weights = True

    def declare(self) -> Declaration:
        """Declare the fact that weighs."""
        return Declaration(frozenset({"epsilon"}))

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the mean of the updates, weighted by disclosed ε."""
        weights = epsilon_weights(updates.disclosed["epsilon"])
        return state, Outcome(weighted_sum(weights, updates.updates), weights)
