"""Robust-HDP: weights by the noise that the server itself estimates in every update.

Malekmohammadi, Yu and Cao, Noise-Aware Algorithm for Heterogeneous Differentially Private Federated
Learning (ICML 2024), Algorithm 1: wᵢ ∝ 1/σ̂ᵢ². The paper estimates σ̂ᵢ² by robust PCA
(``estimator = "rpca"``). The default, ``auto``, reads a first upload by factor analysis of the
n × n Gram matrix (``noise_level.py``), at less than one pass over the updates, and from a site's
second upload on the differences of its uploads (``temporal.py``); a softmax layer's silent sums
(``softmax_head.py``) correct both. ``docs/noise.md`` has what that is worth.

Every round anew, as Algorithm 1 has it, or with ``frozen-after = 1``, as its authors' code has it:
then a site keeps the level of its first upload. Freeze after two at the earliest: one round alone
tells the noise worse. Sites that miss rounds keep what is known of them.

Threat model: an untrusted server that learns nothing but the noisy updates. That it can estimate
their noise is a fact of any federated DP-SGD, not of this rule. No site discloses anything.

Known limit: the weights know noise alone. Under label skew a quiet site may hold few of the labels,
and then these weights can lose to FedAvg.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.estimators.temporal import Tracked, track
from hdpfl_flower.updates import Outcome, RoundUpdates, weighted_sum
from strategies.core.base import HDPStrategy, State
from strategies.noise_aware.oracle import inverse_variance_weights


class RobustHDP(HDPStrategy):
    """Weights by estimated noise."""

    name = "robust-hdp"

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`.

        An update of zeros carries nothing and would pass for noiseless: it gets no weight.
        """
        state, tracked = track(
            state,
            updates.server_round,
            updates.sites,
            updates.updates,
            method=self.terms.estimator,
            clip_norm=self.terms.clip_norm,
            uploads=self.terms.frozen_after,
            head=updates.head,
        )
        heard = np.isfinite(tracked.variances)
        weights = np.full(len(heard), 1 / len(heard))
        if heard.any():
            weights = np.zeros(len(heard))
            weights[heard] = inverse_variance_weights(tracked.variances[heard])
        update = weighted_sum(weights, updates.updates)
        return state, Outcome(update, weights, noise_gauges(tracked))


def noise_gauges(tracked: Tracked) -> dict[str, float | npt.NDArray[np.float64]]:
    """Return a round's noise for the journal, each shape ``(n,)``.

    ``noise_std``, 0 where there is no estimate; ``noise_pairs``, pairs of uploads seen;
    ``noise_identified``, 0 where it may be far from the noise; and for each estimator and reason a
    row of ones and zeros: whose it was.
    """
    known = np.where(np.isfinite(tracked.variances), tracked.variances, 0)
    gauges: dict[str, float | npt.NDArray[np.float64]] = {
        "noise_std": np.sqrt(known),
        "noise_pairs": tracked.pairs,
        "noise_identified": tracked.identified.astype(np.float64),
    }
    for reason in dict.fromkeys(tracked.reasons):
        gauges[f"noise by {reason}"] = np.array([float(r == reason) for r in tracked.reasons])
    return gauges
