"""Server momentum: a decaying sum of the aggregates.

Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification (2019), FedAvgM: m ← βm + Δ, x ← x + ηₜm. A constant Δ moves the model by
Δ·ηₜ/(1 − β) a round in the end: with β = 0.9 take a tenth of the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import Settings
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.server_step.step import PAST, ServerStep, moved_by


class MomentumSettings(Settings):
    """How long the past counts."""

    beta: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="Share β of the direction of the last step that is kept."
    )


@dataclass(frozen=True)
class MomentumState:
    """The state of server momentum.

    Attributes:
        momentum: m, float64, shape ``(d,)``; None before round 1.
    """

    momentum: npt.NDArray[np.float64] | None = None


class ServerMomentum(ServerStep):
    """Move the model by a decaying sum of past aggregates."""

    name = "momentum"
    settings_type = MomentumSettings
    settings: MomentumSettings
    needs = PAST

    def initial_state(self) -> MomentumState:
        """Return no momentum."""
        return MomentumState()

    def move(
        self, state: MomentumState, outcome: Outcome, updates: RoundUpdates
    ) -> tuple[MomentumState, Outcome]:
        """Return the step ηₜ(βm + Δ)."""
        momentum = outcome.update.astype(np.float64)
        if state.momentum is not None:
            momentum += self.settings.beta * state.momentum
        rate, past = self.rate(updates.server_round), outcome.revision
        if past is not None:  # carried on as long as the moves that it takes back
            momentum += past.move / rate
        return MomentumState(momentum), moved_by(
            outcome, (rate * momentum).astype(np.float32), rate
        )
