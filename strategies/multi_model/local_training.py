"""Local: every site trains a model of its own; the server averages nothing.

The baseline of Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated
Learning (TMLR 2025): what a site has without the others, under the same privacy. Its model goes
through the server, which needs it to test it; each site trains with DP-SGD as under any rule.

Threat model: an untrusted server; each site's noise protects its own records. No site discloses
anything.
"""

from __future__ import annotations

import numpy as np

from hdpfl_flower.errors import StrategyError
from hdpfl_flower.updates import RoundUpdates
from strategies.multi_model.groups import UNKNOWN, Ask, Grouped, group_of, models_of
from strategies.multi_model.base import ManyModels
from strategies.core.roster import site_order
from strategies.core.rule import State


class LocalTraining(ManyModels):
    """A model a site."""

    name = "local"

    def begin(self, updates: RoundUpdates) -> Grouped:
        """See :meth:`ManyModels.begin`."""
        ranks = {site: i for i, site in enumerate(sorted(updates.sites, key=site_order))}
        return Grouped(np.array([ranks[site] for site in updates.sites]), len(ranks))

    def ask(self, state: State, server_round: int, site: str) -> Ask:
        """See :meth:`ManyModels.ask`; a newcomer gets the initial model."""
        del server_round
        known = group_of(state, site)
        return Ask(models_of(state) if known == UNKNOWN else known)

    def go_on(self, state: State, updates: RoundUpdates) -> Grouped:
        """See :meth:`ManyModels.go_on`; each newcomer that answered starts a model."""
        if updates.group is None:
            raise StrategyError("an update belongs to no model")
        group, models = updates.group.copy(), models_of(state)
        new = np.flatnonzero(group >= models)
        group[new] = models + np.arange(len(new))
        return Grouped(group, models + len(new))
