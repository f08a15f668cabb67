"""Robust-HDP: weights by the estimated noise of every update.

Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), Algorithm 1: wᵢ ∝ 1/σ̂ᵢ². The paper estimates σ̂ᵢ² by robust PCA
(``estimator = "rpca"``). The default, ``auto``, reads a first upload by factor analysis of the n ×
n Gram matrix (``noise_level.py``), at less than one pass over the updates, and from a site's second
upload on the differences of its uploads (``temporal.py``); a softmax layer's silent sums
(``softmax_head.py``) correct both. ``docs/concepts/noise-aware.md`` has the measured gain.

Every round anew, as Algorithm 1 has it. Sites that miss rounds keep their estimates.

Threat model: an untrusted server that learns nothing but the noisy updates. That it can estimate
their noise is a fact of any federated DP-SGD, not of this strategy. No site discloses anything,
unless ``estimator = "disclosed"`` welcomes it, tested (``disclosed_noise.py``).

Known limit: the weights know noise alone. Under label skew a quiet site may hold few of the labels,
and then these weights can lose to FedAvg.
"""

from __future__ import annotations

from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.inverse_variance import (
    InverseVariance,
    RobustHDPSettings,
    RobustHDPState,
)
from strategies.core.base import Declaration, Disclosed, HDPStrategy


class RobustHDP(HDPStrategy):
    """Weigh each update by its estimated noise."""

    name = "robust-hdp"
    settings_type = RobustHDPSettings
    settings: RobustHDPSettings

    def declare(self) -> Declaration:
        """Declare the disclosed noise, if it is asked for."""
        return Declaration(optional_facts=self.settings.facts)

    def initial_state(self, disclosed: Disclosed | None = None) -> RobustHDPState:
        """Return no uploads."""
        return RobustHDPState()

    def combine(
        self, state: RobustHDPState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[RobustHDPState, Outcome]:
        """Return the step of ``InverseVariance``."""
        return InverseVariance(self.terms, self.settings).combine(state, updates)
