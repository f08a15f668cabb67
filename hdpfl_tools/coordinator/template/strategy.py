"""Weights by inverse update length, without a trusted party and without disclosed facts."""

from __future__ import annotations

import numpy as np

from hdpfl_flower.linalg.sums import square_sum, weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import HDPStrategy, State


class InverseLength(HDPStrategy):
    """A long update is mostly noise, so it counts less."""

    name = "inverse-length"

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the state between rounds, the step and weights that sum to 1."""
        weights = 1 / (1 + np.sqrt([square_sum(row) for row in updates.updates]))
        weights /= weights.sum()
        return state, Outcome(weighted_sum(weights, updates.updates), weights)
