"""SNR: weights by signal to noise, for sites of different numbers of local steps.

Ours, on top of Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially
Private Federated Learning (ICML 2024). Robust-HDP's wᵢ ∝ 1/σ̂ᵢ² asks only how noisy an update is.
Its signal grows with the local steps kᵢ: where the sites agree on the direction, uᵢ = kᵢ·g + noise,
and the best estimate of g has weight kᵢ²/σᵢ² on uᵢ/kᵢ, which is wᵢ ∝ kᵢ/σ̂ᵢ² on uᵢ. Where all take
the same number of steps these are Robust-HDP's weights.

Threat model: as ``robust-hdp``: an untrusted server that learns nothing but the noisy updates.
k is the terms' ``local-steps``, or ⌈K·N/b⌉ where sites disclose ``batch-size`` and
``declared-records``; those who do not count as the median, and where most do not, all k are 1
(``local_steps.py``). A lie about k changes the site's share tenfold at most.

Known limit: as ``robust-hdp``: under label skew a quiet site may hold few of the labels.
"""

from __future__ import annotations

import numpy as np

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration
from strategies.noise_aware.local_steps import LocalSteps, facts_needed, local_steps
from strategies.noise_aware.robust_hdp import (
    RobustHDP,
    RobustHDPState,
    noise_gauges,
    noise_weights,
)


def disclosed_steps(terms: RunTerms, updates: RoundUpdates) -> LocalSteps:
    """Return the local steps of a round's sites, from what they disclosed."""
    nothing = np.full(len(updates.sites), np.nan)
    batch_sizes = updates.disclosed.get("batch-size", nothing)
    return local_steps(terms, batch_sizes, updates.disclosed.get("declared-records", nothing))


class SNR(RobustHDP):
    """Weights by Robust-HDP's noise and by local steps."""

    name = "snr"

    def declare(self) -> Declaration:
        """Declare the facts that show a site's steps, where the terms do not set them."""
        return Declaration(optional_facts=facts_needed(self.terms))

    def combine(
        self, state: RobustHDPState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[RobustHDPState, Outcome]:
        """Return the step: estimate σ̂ᵢ², count kᵢ, weigh by kᵢ/σ̂ᵢ², sum.

        The journal's ``steps`` are the kᵢ that were used, ``steps_known`` is 0 where one is not
        the site's own.
        """
        state, estimate = self.estimate_noise(state, updates)
        steps = disclosed_steps(self.terms, updates)
        variances = np.square(np.sqrt(estimate.variances))  # of the journal's ``noise_std``
        # wᵢ ∝ kᵢ/σ̂ᵢ².
        weights = noise_weights(variances, steps.counts)
        gauges = {
            **noise_gauges(estimate),
            "steps": steps.counts,
            "steps_known": steps.known.astype(np.float64),
        }
        return state, Outcome(weighted_sum(weights, updates.updates), weights, gauges)
