"""Two steps over MMSE averaging: a Fisher preconditioner and a Kalman filter.

No part of the product until ``hdpfl reproduce denoise`` shows a gain. Noise energy of the aggregate
is R = d·s²·Σ wᵢ²σ̂ᵢ², with the strategy's own estimates σ̂ᵢ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.aggregate_noise import noise_energy
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, Disclosed
from strategies.noise_aware.mmse import MMSE, MMSEState

DECAY = 0.9
"""β of the preconditioner's momentum."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PastDirections:
    """State of a denoising step.

    Attributes:
        weights: of MMSE averaging.
        direction: m or the filtered aggregate, shape ``(d,)``; None before round 1.
        last: the last aggregate, likewise.
        rounds: that were filtered, this one included.
        energy: E‖error‖² of ``direction``.
        noise: R of the last aggregate.
    """

    weights: MMSEState
    direction: Floats | None = None
    last: Floats | None = None
    rounds: int = 0
    energy: float = 0.0
    noise: float = 0.0


class DenoisedMMSE(MMSE):
    """MMSE averaging whose aggregate a step filters."""

    name = "denoised"

    def declare(self) -> Declaration:
        """Declare that the step is no weighted sum of the round's updates."""
        return replace(super().declare(), is_weighted_sum=False)

    def initial_state(self, disclosed: Disclosed | None = None) -> Any:
        """Return no past."""
        return PastDirections(super().initial_state(disclosed))

    def combine(
        self, state: Any, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[Any, Outcome]:
        """Return the filtered step; the weights are those of the round."""
        weights, outcome = super().combine(state.weights, updates, noise)
        delta = outcome.update.astype(np.float64)
        variances = np.square(np.asarray(outcome.gauges["noise_std"]))
        energy = outcome.scale**2 * noise_energy(outcome.weights, variances, len(delta))
        state = replace(state, rounds=state.rounds + 1)
        after, step = self.filtered(state, delta, energy)
        moved = replace(outcome, update=step.astype(np.float32), row_weights=None)
        return replace(after, weights=weights), moved

    def filtered(
        self, state: PastDirections, delta: Floats, noise: float
    ) -> tuple[PastDirections, Floats]:
        """Return the next state and the step for an aggregate of this noise energy."""
        raise NotImplementedError


class Preconditioned(DenoisedMMSE):
    """Rank-one Fisher preconditioner, ρ(mmᵀ + ρI)⁻¹Δ, by Sherman–Morrison.

    Nair, Sen, Sen and Banerjee, DP-FedSOFIM (arXiv 2601.09166): m is the decaying mean of the noisy
    aggregates. Its length and so ρ are free there; here ρ is R, the noise energy, and the factor ρ
    keeps the step's length: Δ − m(m·Δ)/(ρ + ‖m‖²).
    """

    name = "preconditioned"

    def filtered(
        self, state: PastDirections, delta: Floats, noise: float
    ) -> tuple[PastDirections, Floats]:
        """Return the preconditioned aggregate."""
        before = 0.0 if state.direction is None else DECAY * state.direction
        kept = before + (1 - DECAY) * delta
        mean = kept / (1 - DECAY**state.rounds)
        total = noise + float(mean @ mean)
        step = delta - mean * (float(mean @ delta) / total) if total > 0 else delta
        return replace(state, direction=kept), step


class Filtered(DenoisedMMSE):
    """Scalar Kalman filter over the aggregates.

    Zhang and others, DiSK (arXiv 2410.03883), and FFTKF (arXiv 2505.04468), at the server alone: no
    second gradient, so the prediction is the last estimate. P grows by what two aggregates differ
    beyond their noise, Q = max(0, ‖Δₜ − Δₜ₋₁‖² − Rₜ − Rₜ₋₁), and κ = P/(P + R).
    """

    name = "filtered"

    def filtered(
        self, state: PastDirections, delta: Floats, noise: float
    ) -> tuple[PastDirections, Floats]:
        """Return the filtered aggregate."""
        if state.direction is None or state.last is None:
            before, prior = np.zeros_like(delta), max(0.0, float(delta @ delta) - noise)
        else:
            gap = delta - state.last
            drift = max(0.0, float(gap @ gap) - noise - state.noise)
            before, prior = state.direction, state.energy + drift
        gain = prior / (prior + noise) if prior + noise > 0 else 1.0
        step = before + gain * (delta - before)
        return replace(
            state, direction=step, last=delta, energy=(1 - gain) * prior, noise=noise
        ), step
