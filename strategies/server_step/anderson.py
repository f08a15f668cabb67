"""Anderson acceleration: a step from the best affine combination of rounds.

Malekmohammadi, Shaloudegi, Hu and Yu, An Operator Splitting View of Federated Learning (2021),
section 5, with the weights of ``linalg/anderson.py``. A round is a map T(x) = x + ηₜΔ(x) with Δ = 0
at its fixed points. With the present x and up to ``memory`` models before it,

    x ← Σ πⱼ(xⱼ + ηₜΔⱼ),  π = argmin ‖Σ πⱼΔⱼ‖², Σπ = 1.

The residuals are the Δⱼ and not ηⱼΔⱼ: a schedule lowers these without coming closer to a fixed
point. At a constant rate the weights are the same.

Under DP these weights average the rounds' noise, and the model lags behind. So there is a gate: the
step is the plain one, to the bit, unless the mixed Δ̄ = Σ πⱼΔⱼ is less than the present Δ by more
than noise explains (``mixing_gate.py``, once in a thousand rounds by chance). The aggregate's noise
is d·scale²·Σ wᵢ²σ̂ᵢ², with the strategy's own σ̂ᵢ (``noise_std``) where it has some, else with
those of ``temporal.py``. A projection leaves at most that noise, and a trimmed mean little more:
both are far below the noise that closes the gate.

The gate has two more conditions. A small Δ may be one of a saddle that training has left behind: as
if Δ were −∇L, the loss must fall from x to x̄ = Σ πⱼxⱼ, (x̄ − x)·(Δ + Δ̄)/2 > 0 by the trapezoidal
rule; of noise that product has a mean below 0. And other sites make another map, with another fixed
point: rounds before the sites changed are forgotten, so that where sites are drawn anew in every
round all steps are plain.

Threat model: that of the strategy before the ``+``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Settings
from hdpfl_flower.estimators.aggregate_noise import noise_energy
from hdpfl_flower.estimators.temporal import NoiseMemory, TrackOptions, track
from hdpfl_flower.linalg.anderson import mixing_weights
from hdpfl_flower.linalg.sums import exact_sum, inner_products
from hdpfl_flower.linalg.types import Matrix, Updates, Vector
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.server_step.mixing_gate import is_better
from strategies.server_step.step import PAST, ServerStep, moved_by

RIDGE = 1e-10
"""Ridge of the mixing, a share of the largest residual's square."""
LARGEST = 50
"""Most stored models: each takes two arrays of the model's size."""


class AndersonSettings(Settings):
    """Settings of the number of mixed rounds and of the noise gate."""

    memory: Annotated[int, Field(ge=1, le=LARGEST)] = Field(
        3, description="Number τ of rounds before the present one that are mixed."
    )
    gate: Literal["noise", "none"] = Field(
        "noise",
        description="noise takes the plain step where mixing would average noise or climb. "
        "none always mixes.",
    )


@dataclass(frozen=True)
class AndersonState:
    """State of Anderson acceleration: at most ``memory`` rounds, oldest first.

    Aggregates and moves are float32, so that nothing is lost. The state takes 8·τ·d bytes, and the
    memory of ``track`` where the strategy estimates no noise.

    Attributes:
        residuals: Δⱼ, shape ``(m, d)``; None before round 1.
        moves: xⱼ₊₁ − xⱼ, shape ``(m, d)``.
        noise: E‖εⱼ‖² of each residual, or more.
        sites: of the last round.
        uploads: memory of the sites' uploads, to estimate their noise.
    """

    residuals: Updates | None = None
    moves: Updates | None = None
    noise: tuple[float, ...] = ()
    sites: tuple[str, ...] = ()
    uploads: NoiseMemory = field(default_factory=NoiseMemory)


class Anderson(ServerStep):
    """Combine past rounds into a longer step (Anderson acceleration) unless noise dominates."""

    name = "anderson"
    settings_type = AndersonSettings
    settings: AndersonSettings
    is_linear = False
    needs: ClassVar[Mapping[str, str]] = {
        **PAST,
        "fresh_noise": "take '+momentum' in its place",
        "noisy_updates": "take '+momentum' in its place, or leave out 'noise'",
    }

    def __init__(self, config: RunConfig) -> None:
        """Prepare for the run of ``config``."""
        super().__init__(config)
        self._terms = config.terms

    def initial_state(self) -> AndersonState:
        """Return no rounds."""
        return AndersonState()

    def move(
        self, state: AndersonState, outcome: Outcome, updates: RoundUpdates
    ) -> tuple[AndersonState, Outcome]:
        """Return the mixed step Σ πⱼ(xⱼ + ηₜΔⱼ) − x, or the plain one.

        The journal's ``anderson_gate`` is 1 where the step is mixed, ``anderson_weight`` is Σ|πⱼ|,
        1 for the plain step; ``anderson_energy`` is ‖Δ‖² and ``anderson_noise`` its noise's.
        """
        state, noise = self._measure(state, outcome, updates)
        residuals = _appended(state.residuals, outcome.update)
        energies = np.array([*state.noise, noise])
        gram = inner_products(residuals)
        weights = mixing_weights(gram, RIDGE)
        rate = self.rate(updates.server_round)
        outcome = replace(outcome, revision=None)  # earlier moves are no sums of aggregates
        _, moved = super().move(None, outcome, updates)
        mixed = None
        if state.moves is not None and self._is_clear(gram, energies, weights, residuals.shape[1]):
            mixed = self._mixed(weights, rate, residuals, state.moves)
        if mixed is not None:
            moved = moved_by(moved, mixed, rate)
        gauges = {
            "anderson_gate": float(mixed is not None),
            "anderson_weight": 1.0 if mixed is None else float(np.abs(weights).sum()),
            "anderson_energy": float(gram[-1, -1]),
        }
        if np.isfinite(noise):
            gauges["anderson_noise"] = noise
        memory = self.settings.memory
        after = replace(
            state,
            residuals=residuals[-memory:],
            moves=_appended(state.moves, moved.update)[-memory:],
            noise=tuple(energies[-memory:].tolist()),
            sites=updates.sites,
        )
        return after, replace(moved, gauges={**moved.gauges, **gauges})

    def _is_clear(self, gram: Matrix, noise: Vector, weights: Vector, d: int) -> bool:
        return self.settings.gate == "none" or is_better(gram, noise, weights, d)

    def _mixed(
        self, weights: Vector, rate: float, residuals: Updates, moves: Updates
    ) -> Updates | None:
        """Return Σ πⱼ(xⱼ − x + ηₜΔⱼ), shape ``(d,)``; None if it climbs or overflows."""
        mean = exact_sum(weights, residuals)
        # xⱼ − x = −Σ_{k ≥ j} moves: each move counts for all πⱼ up to it.
        jump = -exact_sum(np.cumsum(weights)[:-1], moves)
        # Not by `@`: its bits depend on the threads.
        if self.settings.gate == "noise" and not (jump * (residuals[-1] + mean)).sum() > 0:
            return None
        with np.errstate(over="ignore"):
            step = (jump + rate * mean).astype(np.float32)
        return step if np.isfinite(step).all() else None

    def _measure(
        self, state: AndersonState, outcome: Outcome, updates: RoundUpdates
    ) -> tuple[AndersonState, float]:
        """Return the pruned state and the noise energy of the aggregate."""
        rows, uploads = updates.updates, state.uploads
        if self.settings.gate == "none":
            return state, 0.0
        if updates.projected is not None and updates.projected.any():
            return state, np.inf  # the noise of one number is not spread evenly over d
        if "noise_std" in outcome.gauges:
            variances = np.square(outcome.gauges["noise_std"])
        else:
            options = TrackOptions(
                clip_norm=self._terms.clip_norm, noise_factor=self._terms.noise_factor
            )
            uploads, estimate = track(
                uploads, updates.server_round, updates.sites, rows, options, updates.head
            )
            variances = estimate.variances
        energy = outcome.scale**2 * noise_energy(outcome.weights, variances, rows.shape[1])
        state = replace(state, uploads=uploads)
        if state.sites != updates.sites:
            state = replace(state, residuals=None, moves=None, noise=())
        return state, energy


def _appended(rows: Updates | None, row: Updates) -> Updates:
    return row[None].copy() if rows is None else np.vstack([rows, row])
