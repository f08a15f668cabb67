"""FedAdam and FedYogi: a rate for each coordinate.

Reddi et al., Adaptive Federated Optimization (ICLR 2021), Algorithm 2:

    m ← β₁m + (1 − β₁)Δ
    v ← β₂v + (1 − β₂)Δ²                    (Adam)
    v ← v − (1 − β₂)Δ² sign(v − Δ²)         (Yogi)
    x ← x + ηₜ m/(√v + τ),                   v = τ² before round 1

without a correction of the first rounds' bias, as printed. The step no longer grows with Δ: a
coordinate moves by about ηₜ a round, so that ``server-learning-rate = "auto"`` is 0.01 here.

Under DP most of v is noise, alike in all coordinates, and the step is close to momentum's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import Positive, Settings
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.server_step.step import PAST, ServerStep, moved_by

Floats = npt.NDArray[np.float64]

BLOCK = 1 << 15
"""Coordinates per stretch, so that m, v and Δ stay in cache."""


BETA_1, BETA_2 = 0.9, 0.99
"""Shares of the last direction and of the last squares that are kept; the paper's."""


class AdaptiveSettings(Settings):
    """Setting of the division's least denominator."""

    tau: Positive = Field(
        1e-3,
        description="Adaptivity τ: it is added to the root of the squares, and is their "
        "first value.",
    )


@dataclass(frozen=True)
class AdaptiveState:
    """The state of FedAdam and FedYogi.

    Attributes:
        momentum: m, float64, shape ``(d,)``; None before round 1.
        squares: v, likewise.
    """

    momentum: Floats | None = None
    squares: Floats | None = None


class Adam(ServerStep):
    """FedAdam: a step size for each coordinate, from past aggregates."""

    name = "adam"
    settings_type = AdaptiveSettings
    settings: AdaptiveSettings
    is_linear = False
    default_rate = 0.01
    needs = PAST

    def initial_state(self) -> AdaptiveState:
        """Return no momentum, no squares."""
        return AdaptiveState()

    def move(
        self, state: AdaptiveState, outcome: Outcome, updates: RoundUpdates
    ) -> tuple[AdaptiveState, Outcome]:
        """Return the step ηₜ m/(√v + τ)."""
        outcome = replace(outcome, revision=None)  # earlier moves are no sums of aggregates
        tau, rate = self.settings.tau, self.rate(updates.server_round)
        delta, step = outcome.update, np.empty_like(outcome.update)
        momentum, squares = np.empty(delta.shape), np.empty(delta.shape)
        for first in range(0, len(delta), BLOCK):
            block = slice(first, first + BLOCK)
            here = delta[block].astype(np.float64)
            m = (1 - BETA_1) * here
            if state.momentum is not None:
                m += BETA_1 * state.momentum[block]
            old = np.full(len(here), tau**2) if state.squares is None else state.squares[block]
            v = self.next_squares(old, here * here)
            momentum[block], squares[block] = m, v
            step[block] = rate * m / (np.sqrt(v) + tau)
        return AdaptiveState(momentum, squares), moved_by(outcome, step, rate)

    def next_squares(self, squares: Floats, new: Floats) -> Floats:
        """Return v after a round, shape ``(d,)``; at least 0."""
        return BETA_2 * squares + (1 - BETA_2) * new


class Yogi(Adam):
    """FedYogi: FedAdam with a bounded change of each second moment."""

    name = "yogi"

    def next_squares(self, squares: Floats, new: Floats) -> Floats:
        """Return v after a round, shape ``(d,)``; at least 0."""
        # v − (1 − β₂)Δ² ≥ β₂v where v > Δ²: v never falls below 0.
        return squares - (1 - BETA_2) * new * np.sign(squares - new)
