"""Robust-HDP with drift: weights that know that noise averages out over rounds and drift does not.

Ours, on top of Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially
Private Federated Learning (ICML 2024). Robust-HDP's wᵢ ∝ 1/σ̂ᵢ² minimise the noise of one round.
Over H rounds the noise of the sum grows with H, the bias of a site that holds few of the labels
with H². And a site's update grows with its local steps kᵢ, so what sites agree or differ on is
vᵢ = uᵢ/kᵢ, of noise σ̂ᵢ²/kᵢ². Here the vᵢ get the weights

    pᵢ ∝ 1/(σ̂ᵢ²/kᵢ² + H·τ̂²),  Σp = 1

with H = ``rounds`` and τ̂² the between-site variance of v (DerSimonian and Laird, 1986;
``drift.py``), averaged over the rounds so far and not below 0. The model moves by k̄·Σ pᵢvᵢ, k̄ the
plain mean of the steps, as far as FedAvg would. FedNova (Wang et al., NeurIPS 2020) takes Σ pᵢkᵢ,
which lets a site that overstates its steps scale the whole step; k̄ grows by (n + 9)/n at most. The
updates' shares are wᵢ ∝ pᵢ/kᵢ, the journal's ``weights``. Without drift these are the weights of
``snr``, and with equal steps Robust-HDP's; with much drift and equal steps, FedAvg's.

Threat model: as ``snr``, which says where k comes from: an untrusted server that learns nothing but
the noisy updates, and batch sizes and records where sites disclose them.

Known limits: in a site's first upload, drift that no two sites share looks like noise; from the
second upload on the noise estimate is free of it. One site alone shows no drift. Where k is not
known, a site with more steps counts as drifting.
"""

from __future__ import annotations

import math

import numpy as np

from strategies.noise_aware.between_site_variance import between_site_variance
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.linalg.projection import inner_products
from hdpfl_flower.updates import Outcome, RoundUpdates, weighted_sum
from strategies.core.base import State
from strategies.noise_aware.oracle import inverse_variance_weights
from strategies.noise_aware.snr import SNR

_SUM, _ROUNDS = "drift_sum", "drift_rounds"
"""The state beside Robust-HDP's own: the sum of the rounds' τ̂², below 0 too, and their number."""


class RobustHDPDrift(SNR):
    """Weights by Robust-HDP's noise, by local steps and by drift.

    The update is a multiple of the weighted sum of the updates: ``Outcome.scale``.
    """

    name = "robust-hdp-drift"

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`.

        The journal's ``drift_std`` is the square root of the mean τ̂² so far, a local step, and
        ``step_scale`` what Σ wᵢuᵢ was multiplied with.
        """
        total = state.get(_SUM, np.zeros(1))
        rounds = state.get(_ROUNDS, np.zeros(1))
        inner: State = {name: array for name, array in state.items() if name not in (_SUM, _ROUNDS)}
        inner, outcome = super().combine(inner, updates, noise)
        variances = np.square(outcome.gauges.get("noise_std", np.zeros(len(updates.sites))))
        measured = variances > 0
        if not measured.any():
            return {**inner, _SUM: total, _ROUNDS: rounds}, outcome
        rows = updates.updates
        steps = np.asarray(outcome.gauges["steps"])[measured]
        of_steps = variances[measured] / steps**2
        moments = inner_products(rows)[np.ix_(measured, measured)] / rows.shape[1]
        total = total + between_site_variance(moments / np.outer(steps, steps), of_steps)
        rounds = rounds + 1
        drift = max(0.0, float(total[0] / rounds[0]))
        weights = np.zeros(len(rows))
        weights[measured] = inverse_variance_weights(steps * (of_steps + self.terms.rounds * drift))
        scale = float(steps.mean() / (weights[measured] @ steps))  # Σw·k = 1/Σ(p/k)
        gauges = {**outcome.gauges, "drift_std": math.sqrt(drift), "step_scale": scale}
        state = {**inner, _SUM: total, _ROUNDS: rounds}
        return state, Outcome(weighted_sum(scale * weights, rows), weights, gauges, scale)
