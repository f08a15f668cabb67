"""Base of projections of the private updates, under the weights of another strategy.

The projection of PFA (Liu et al., VLDB 2021) does not depend on how updates are weighted, so it is
a part: ``robust-hdp+pfa`` is Robust-HDP's weights with PFA's projection, and ``pfa`` is
``weiavg+pfa``. The strategy that weighs runs unchanged, on the same updates.

Threat model: that of the strategy that weighs; and each site discloses its ε to the server, which
calls the loose ones public.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.settings import AtLeastOne, Settings
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.averaging.weiavg import WeiAvg
from strategies.core.base import Declaration, HDPStrategy, State
from strategies.core.declaration import Needs
from strategies.core.sampler import Sampler

log = logging.getLogger("hdpfl.server")

Projection = tuple[npt.NDArray[np.float32], int]
"""Aggregate with its private part projected, and the number of directions."""


def public_sites(updates: RoundUpdates, sampler: Sampler) -> npt.NDArray[np.bool_]:
    """Return a mask of the public updates, shape ``(n,)``; zero updates are excluded.

    The split is that of all sites that joined, so that a site is public or not whoever else is
    asked, or answers.
    """
    disclosed = dict(zip(updates.sites, updates.disclosed["epsilon"].tolist(), strict=True))
    named = sampler.public_sites(disclosed)
    public: npt.NDArray[np.bool_] = np.array(
        [
            site in named and bool(row.any())
            for site, row in zip(updates.sites, updates.updates, strict=True)
        ],
        dtype=np.bool_,
    )
    return public


class ProjectionSettings(Settings):
    """Setting of the projection: number of directions."""

    subspace_rank: AtLeastOne = Field(
        1, description="Number k of directions that are kept. The public updates may have fewer."
    )


class Projected(HDPStrategy):
    """Weights of another strategy, with the private part projected."""

    settings_type: ClassVar[type[Settings]] = ProjectionSettings
    settings: ProjectionSettings
    default_weights = WeiAvg
    needs_of_weights: ClassVar[Needs] = {
        "survives_projection": "take 'mmse' without it, or '+pfa' after 'robust-hdp' or 'fedavg'"
    }

    def declare(self) -> Declaration:
        """Declare ε and the facts of the weights; a projection is no weighted sum."""
        offers = super().declare()
        facts = offers.required_facts | {"epsilon"}
        return replace(
            offers,
            required_facts=facts,
            is_weighted_sum=False,
            round_alone=True,
            is_convex=False,
        )

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the weighted mean with its private part projected.

        The journal's ``public`` marks the public sites of the round and ``subspace_rank`` the
        directions kept; 0 means that nothing was projected, for want of public or private sites.
        """
        state, outcome = self.weights.combine(state, updates, noise)
        public, rank, update = public_sites(updates, self.sampler), 0, outcome.update
        # No public update spans no subspace, and without private weight there is nothing to
        # project.
        if public.any() and outcome.weights[~public].any():
            update, rank = self.project(updates, outcome.weights, public)
        else:
            who = "private" if public.any() else "public"
            log.warning(
                "round %d: no %s site; nothing is projected ('public-split' = '%s')",
                updates.server_round,
                who,
                self.server.public_split,
            )
        gauges = {
            **outcome.gauges,
            "public": public.astype(np.float64),
            "subspace_rank": float(rank),
        }
        return state, Outcome(update, outcome.weights, gauges)

    @abstractmethod
    def project(
        self,
        updates: RoundUpdates,
        weights: npt.NDArray[np.float64],
        public: npt.NDArray[np.bool_],
    ) -> Projection:
        """Return the aggregate with the private sites' share projected, and the directions."""
