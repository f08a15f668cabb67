"""Robust-HDP: weights by the noise that the server itself estimates in every update.

Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), Algorithm 1: wᵢ ∝ 1/σ̂ᵢ². The paper estimates σ̂ᵢ² by robust PCA; here it is
factor analysis of the n × n Gram matrix (``noise_level.py``), which is the exact model of updates
that share a low-rank signal and have each their own noise, at one pass over the updates.

Threat model: an untrusted server that learns nothing but the noisy updates. That it can estimate
their noise is a fact of any federated DP-SGD, not of this rule. No site discloses anything.

Known limit: the weights know noise alone. Under label skew a quiet site may hold few of the labels,
and then these weights can lose to FedAvg.
"""

from __future__ import annotations

import numpy as np

from hdpfl_flower.noise import RandomStream
from hdpfl_flower.noise_level import estimate_noise_levels
from hdpfl_flower.updates import Outcome, RoundUpdates, weighted_sum
from strategies.base import HDPStrategy, State
from strategies.oracle import inverse_variance_weights


class RobustHDP(HDPStrategy):
    """Weights by estimated noise, every round anew."""

    name = "robust-hdp"

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`.

        An update of zeros carries nothing and would pass for noiseless: it gets no weight.
        """
        rows = updates.updates
        informative = np.any(rows != 0, axis=1)
        weights = np.full(len(rows), 1 / len(rows))
        variances = np.zeros(len(rows))
        if informative.any():
            variances[informative] = estimate_noise_levels(rows[informative])
            weights = np.zeros(len(rows))
            weights[informative] = inverse_variance_weights(variances[informative])
        gauges = {"noise_std": np.sqrt(variances)}
        return state, Outcome(weighted_sum(weights, rows), weights, gauges)
