"""Robust-HDP with drift: weights that know that noise averages out over rounds and drift does not.

Ours, on top of Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially
Private Federated Learning (ICML 2024). Robust-HDP's wᵢ ∝ 1/σ̂ᵢ² minimise the noise of one round.
Over H rounds the noise of the sum grows with H, the bias of a site that holds few of the labels
with H². And a site's update grows with its local steps kᵢ, so what sites agree or differ on is
vᵢ = uᵢ/kᵢ, of noise σ̂ᵢ²/kᵢ². Here the vᵢ get the weights

    pᵢ ∝ 1/(σ̂ᵢ²/kᵢ² + H·τ̂²),  Σp = 1

with H = ``rounds`` and τ̂² the between-site variance of v (DerSimonian and Laird, 1986;
``between_site_variance.py``), averaged over the rounds so far and not below 0. The model moves by
k̄·Σ pᵢvᵢ, k̄ the plain mean of the steps, as far as FedAvg would. FedNova (Wang et al., NeurIPS
2020) takes Σ pᵢkᵢ, which lets a site that overstates its steps scale the whole step; k̄ grows by (n
+ 9)/n at most. The updates' shares are wᵢ ∝ pᵢ/kᵢ, the journal's ``weights``. Without drift these
are the weights of ``snr``, and with equal steps Robust-HDP's; with much drift and equal steps,
FedAvg's.

Threat model: as ``snr``, which states the source of k: an untrusted server that learns nothing but
the noisy updates, and batch sizes, records and ε where sites disclose them.

Known limits: in a site's first upload, drift that no two sites share looks like noise; from the
second upload on the noise estimate is free of it. One site alone shows no drift. Where k is not
known, a site with more steps counts as drifting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hdpfl_flower.linalg.sums import inner_products, weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, Disclosed
from strategies.noise_aware.between_site_variance import between_site_variance
from strategies.noise_aware.oracle import inverse_variance_weights
from strategies.noise_aware.robust_hdp import RobustHDPState
from strategies.noise_aware.snr import SNR


@dataclass(frozen=True)
class RobustHDPDriftState(RobustHDPState):
    """The state of Robust-HDP with drift.

    Attributes:
        drift_sum: the sum of the rounds' τ̂², below 0 too.
        drift_rounds: their number.
    """

    drift_sum: float = 0.0
    drift_rounds: int = 0


class RobustHDPDrift(SNR):
    """Weights by Robust-HDP's noise, by local steps and by drift.

    The update is a multiple of the weighted sum of the updates: ``Outcome.scale``.
    """

    name = "robust-hdp-drift"

    def declare(self) -> Declaration:
        """Declare the facts of SNR; the step may be longer than any client's."""
        return replace(super().declare(), is_convex=False)

    def initial_state(self, disclosed: Disclosed | None = None) -> RobustHDPDriftState:
        """Return no uploads, no drift."""
        return RobustHDPDriftState()

    def combine(
        self, state: Any, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[Any, Outcome]:
        """Return the step: σ̂ᵢ² and kᵢ as SNR has them, then τ̂², then the weights and k̄.

        The journal's ``drift_std`` is the square root of the mean τ̂² so far, a local step, and
        ``step_scale`` the factor of Σ wᵢuᵢ.
        """
        after, found = self.measure(state, updates)
        variances, measured = found.variances, np.isfinite(found.variances)
        if not measured.any():
            return super().combine(state, updates, noise)
        state, rows = after, updates.updates
        steps = found.steps[measured]
        of_steps = variances[measured] / steps**2
        # Per local step: uᵢ/kᵢ has the noise variance σᵢ²/kᵢ² and the moments uᵢ·uⱼ/(d·kᵢ·kⱼ).
        moments = inner_products(rows)[np.ix_(measured, measured)] / rows.shape[1]
        of_round = between_site_variance(moments / np.outer(steps, steps), of_steps)
        total, rounds = state.drift_sum + of_round, state.drift_rounds + 1
        # Clipped at 0 after the mean: a mean of clipped rounds would be too large.
        drift = max(0.0, total / rounds)
        weights = np.zeros(len(rows))
        # wᵢ ∝ pᵢ/kᵢ = 1/(kᵢ·(σ̂ᵢ²/kᵢ² + H·τ̂²)).
        weights[measured] = inverse_variance_weights(steps * (of_steps + self.terms.rounds * drift))
        scale = float(steps.mean() / (weights[measured] @ steps))  # Σw·k = 1/Σ(p/k)
        gauges = {**found.gauges, "drift_std": math.sqrt(drift), "step_scale": scale}
        state = replace(state, drift_sum=total, drift_rounds=rounds)
        return state, Outcome(weighted_sum(scale * weights, rows), weights, gauges, scale)
