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
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import AtLeastOne, Settings
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import Declaration, Disclosed, HDPStrategy, State
from strategies.core.public_split import parse_split
from strategies.core.sampler import Sampler

log = logging.getLogger("hdpfl.server")

Part = tuple[npt.NDArray[np.float32], int]
"""Stretch of the aggregate, with the number of directions of its projection."""


def check_split(config: RunConfig) -> None:
    """Raise ``TermsError`` where ``public-split`` is not one."""
    parse_split(config.server.public_split)


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
    """Settings of the projection: input and number of directions."""

    subspace_rank: AtLeastOne = Field(
        1, description="Directions kept, k; the public updates may have fewer."
    )
    subspace_scope: Literal["vector", "tensor"] = Field(
        "vector", description="Project the whole update, or each parameter on its own."
    )


class Projected(HDPStrategy):
    """Weights of ``weighting``, with the private part projected."""

    settings_type: ClassVar[type[Settings]] = ProjectionSettings
    settings: ProjectionSettings

    def __init__(self, config: RunConfig) -> None:
        """Prepare the run; raises ``TermsError`` for an unknown split."""
        check_split(config)
        super().__init__(config)

    def declare(self) -> Declaration:
        """Declare ε and the facts of the weighting; a projection is no weighted sum."""
        inner = self._weighting.declare()
        return Declaration(
            inner.required_facts | {"epsilon"},
            inner.optional_facts,
            is_weighted_sum=False,
            is_convex=False,
        )

    def initial_state(self, disclosed: Disclosed | None = None) -> State:
        """Return the state of the strategy that weighs."""
        return self._weighting.initial_state(disclosed)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the weighted mean with its private part projected.

        The journal's ``public`` marks the public sites of the round and ``subspace_rank`` the
        directions kept; 0 means that nothing was projected, for want of public or private sites.
        """
        state, outcome = self._weighting.combine(state, updates, noise)
        public, rank, update = public_sites(updates, self.sampler), 0, outcome.update
        # No public update spans no subspace, and without private weight there is nothing to
        # project.
        if public.any() and outcome.weights[~public].any():
            update = np.empty_like(update)
            # Parts are disjoint stretches of coordinates that cover all d.
            for stretch in self._parts(updates):
                update[stretch], directions = self.project(
                    updates, stretch, outcome.weights, public
                )
                rank = max(rank, directions)
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
        stretch: slice,
        weights: npt.NDArray[np.float64],
        public: npt.NDArray[np.bool_],
    ) -> Part:
        """Return the aggregate's coordinates ``stretch``, the private sites' share projected."""

    def _parts(self, updates: RoundUpdates) -> Iterator[slice]:
        """Yield the whole update, or each tensor if the settings say so."""
        if self.settings.subspace_scope == "vector" or not updates.tensor_sizes:
            yield slice(0, updates.updates.shape[1])
            return
        start = 0
        for size in updates.tensor_sizes:
            yield slice(start, start + size)
            start += size
