"""SNR: weights by signal to noise, for sites of different numbers of local steps.

Ours, on top of Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially
Private Federated Learning (ICML 2024). Robust-HDP's wᵢ ∝ 1/σ̂ᵢ² asks only how noisy an update is.
Its signal grows with the local steps kᵢ: where the sites agree on the direction, uᵢ = kᵢ·g + noise,
and the best estimate of g has weight kᵢ²/σᵢ² on uᵢ/kᵢ, which is wᵢ ∝ kᵢ/σ̂ᵢ² on uᵢ. Where all take
the same number of steps these are Robust-HDP's weights.

Threat model: as ``robust-hdp``: an untrusted server that learns nothing but the noisy updates.
k is the terms' ``local-steps``, or ⌈K·N/b⌉ where sites disclose ``batch-size`` and
``declared-records``; those who do not count as the median, and where most do not, all k are 1
(``local_steps.py``). A lie about k changes the site's share tenfold at most. Who discloses
``epsilon``, too, counts as no quieter than an honest site of these facts (``claimed_noise.py``).

Known limit: as ``robust-hdp``: under label skew a quiet site may hold few of the labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration
from strategies.noise_aware.claimed_noise import CLAIMS, noise_bounds, raise_estimates
from strategies.noise_aware.local_steps import LocalSteps, local_steps
from strategies.noise_aware.robust_hdp import (
    RobustHDP,
    RobustHDPState,
    StateT,
    noise_gauges,
    noise_weights,
)


def disclosed_steps(terms: RunTerms, updates: RoundUpdates) -> LocalSteps:
    """Return the local steps of a round's sites, from what they disclosed."""
    nothing = np.full(len(updates.sites), np.nan)
    batch_sizes = updates.disclosed.get("batch-size", nothing)
    return local_steps(terms, batch_sizes, updates.disclosed.get("declared-records", nothing))


@dataclass(frozen=True)
class NoiseAndSteps:
    """What the weights of a round are made of.

    Attributes:
        variances: σ̂ᵢ² a coordinate, none below its site's bound; ∞ for an update of zeros.
        steps: kᵢ, shape ``(n,)``.
        gauges: of both, for the journal.
    """

    variances: npt.NDArray[np.float64]
    steps: npt.NDArray[np.float64]
    gauges: dict[str, float | npt.NDArray[np.float64]]


class SNR(RobustHDP):
    """Weights by Robust-HDP's noise and by local steps."""

    name = "snr"

    def declare(self) -> Declaration:
        """Declare the facts that show a site's steps and bound its noise."""
        return Declaration(optional_facts=CLAIMS)

    def combine(
        self, state: RobustHDPState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[RobustHDPState, Outcome]:
        """Return the step: estimate σ̂ᵢ², count kᵢ, weigh by kᵢ/σ̂ᵢ², sum."""
        state, round_ = self.measure(state, updates)
        weights = noise_weights(round_.variances, round_.steps)
        return state, Outcome(weighted_sum(weights, updates.updates), weights, round_.gauges)

    def measure(self, state: StateT, updates: RoundUpdates) -> tuple[StateT, NoiseAndSteps]:
        """Return the state after a round, and σ̂ᵢ² and kᵢ of its clients.

        The journal's ``steps`` are the kᵢ that were used, ``steps_known`` is 0 where one is not
        the site's own. ``noise_std`` is the estimate as the updates have it; ``noise_bound`` is
        the least that an honest site of the disclosed facts has, 0 where they bound nothing, and
        ``noise_raised`` is 1 where it replaces the estimate.
        """
        state, estimate = self.estimate_noise(state, updates)
        steps = disclosed_steps(self.terms, updates)
        variances = np.square(np.sqrt(estimate.variances))  # of the journal's ``noise_std``
        raised = raise_estimates(variances, noise_bounds(self.terms, updates))
        gauges = {
            **noise_gauges(estimate),
            **raised.gauges,
            "steps": steps.counts,
            "steps_known": steps.known.astype(np.float64),
        }
        return state, NoiseAndSteps(raised.variances, steps.counts, gauges)
