"""Random projection of private updates: a control for PFA's subspace.

The random projection baseline of PFA (Liu et al., Projected Federated Averaging with Heterogeneous
Differential Privacy, VLDB 2021): as ``pfa``, with the directions of a Gaussian matrix in place of
those of the public updates. The paper does not say how the transform is scaled; here it is an
orthogonal projection on k random directions, drawn anew each round from the run's seed, so that
it and ``pfa`` differ in the subspace alone. It keeps about k/d of the private sites' mean.

Threat model: an untrusted server to which each site discloses its ε. Projection is post-processing
of noisy updates: it costs no budget.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.projection import project_at_random
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.updates import RoundUpdates
from strategies.projection.base import Projected, Projection


class RandomProjection(Projected):
    """Project private updates on random directions (control for pfa); default weights follow ε."""

    name = "random-projection"

    def project(
        self,
        updates: RoundUpdates,
        weights: npt.NDArray[np.float64],
        public: npt.NDArray[np.bool_],
    ) -> Projection:
        """Return the private part on random directions, plus the public part."""
        rank, rows = self.settings.subspace_rank, updates.updates
        generator = np.random.default_rng(
            [self.simulation.seed, updates.server_round, 0, *b"random-projection"]
        )
        # Weights of 0 instead of fewer rows: those would be a copy
        private = weighted_sum(np.where(public, 0.0, weights), rows)
        total = project_at_random(private, rank, generator)
        total += weighted_sum(np.where(public, weights, 0.0), rows)
        return total, min(rank, rows.shape[1])
