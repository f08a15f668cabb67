"""Weights by inverse update length. No trusted party, no disclosed facts."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from hdpfl_flower.config.settings import Positive, Settings
from hdpfl_flower.linalg.sums import square_sum, weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, HDPStrategy, State


class InverseLengthSettings(Settings):
    """How much the length counts."""

    scale: Positive = Field(1.0, description="The length at which a weight is halved.")


class InverseLength(HDPStrategy):
    """A long update is mostly noise, so it counts less."""

    name = "inverse-length"
    settings_type = InverseLengthSettings
    settings: InverseLengthSettings

    def declare(self) -> Declaration:
        """Return the verified declaration: a weighted sum between the clients' updates."""
        return Declaration(is_weighted_sum=True, is_convex=True)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the next state, the step and weights that sum to 1.

        Args:
            state: the strategy's memory between rounds; None here.
            updates: of the round, float32, a row a client.
            noise: for strategies that add some.
        """
        lengths = np.sqrt([square_sum(row) for row in updates.updates])
        weights = 1 / (1 + lengths / self.settings.scale)
        weights /= weights.sum()
        return state, Outcome(weighted_sum(weights, updates.updates), weights)
