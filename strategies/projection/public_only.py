"""Public sites only: the baseline that PFA must beat.

The control beside PFA (Liu et al., Projected Federated Averaging with Heterogeneous Differential
Privacy, VLDB 2021): the updates of the sites with the loosest ε, weighted by ε; the others get no
weight. Where this does as well as PFA, the projected private updates add nothing.

Threat model: as ``weiavg``: an untrusted server to which each site discloses its ε. The private
sites train, send, and spend their budget all the same, so that comparisons are fair. The public
sites are those of ``public-split``, among all sites that joined; a round without a public site
falls back to WeiAvg's weights over all, which the journal shows (``public`` is 0 everywhere).
"""

from __future__ import annotations

import numpy as np

from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.weighting.by_epsilon import epsilon_weights
from strategies.core.base import Declaration, HDPStrategy, State
from strategies.projection.base import public_sites


class PublicOnly(HDPStrategy):
    """Average the public sites only (the loosest ε), weighted by ε."""

    name = "public-only"

    def declare(self) -> Declaration:
        """Declare the fact that weighs."""
        return Declaration(frozenset({"epsilon"}))

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the public updates' mean, weighted by disclosed ε."""
        public = public_sites(updates, self.sampler)
        chosen = public if public.any() else np.ones(len(public), dtype=bool)
        # Weights of zero, not fewer rows: the sum reads every row once and copies none.
        weights = np.zeros(len(public))
        weights[chosen] = epsilon_weights(updates.disclosed["epsilon"][chosen])
        gauges = {"public": public.astype(np.float64)}
        return state, Outcome(weighted_sum(weights, updates.updates), weights, gauges)
