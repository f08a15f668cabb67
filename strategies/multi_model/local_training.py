"""Local: every site trains a model of its own; the server averages nothing.

The baseline of Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated
Learning (TMLR 2025): what a site has without the others, under the same privacy. Its model goes
through the server, which needs it to test it; each site trains with DP-SGD as under any strategy.

Threat model: an untrusted server; each site's noise protects its own records. No site discloses
anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hdpfl_flower.errors import StrategyError
from hdpfl_flower.updates import RoundUpdates
from strategies.core.interface import SiteRequest
from strategies.core.roster import site_order
from strategies.multi_model.base import MultiModel
from strategies.multi_model.groups import UNKNOWN, Assignment, MultiModelState


class LocalTraining(MultiModel):
    """A model a site."""

    name = "local"

    def initial_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return a group of its own for each client."""
        ranks = {site: i for i, site in enumerate(sorted(updates.sites, key=site_order))}
        return state, Assignment(np.array([ranks[site] for site in updates.sites]), len(ranks))

    def request_training(self, state: MultiModelState, server_round: int, site: str) -> SiteRequest:
        """Return the site's own model; a newcomer gets the initial one, under the next number."""
        known = state.group_of(site)
        return SiteRequest(state.models if known == UNKNOWN else known)

    def update_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return the groups as they are; each newcomer that answered starts a model."""
        if updates.group is None:
            raise StrategyError("an update belongs to no model")
        group, models = updates.group.copy(), state.models
        # All newcomers were sent the same next number; here each gets one of its own.
        new = np.flatnonzero(group >= models)
        group[new] = models + np.arange(len(new))
        return state, Assignment(group, models + len(new))
