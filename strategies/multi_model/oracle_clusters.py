"""Oracle clusters: a simulation's true groups, as an upper bound.

The baseline of Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated
Learning (TMLR 2025): the bound of any clustered strategy, with a model for each true group
(``groups``).

Threat model: none; the server knows of every simulated site which data it was given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.system.tools import tool
from hdpfl_flower.updates import RoundUpdates
from strategies.core.interface import Disclosed, SiteRequest
from strategies.multi_model.base import MultiModel
from strategies.multi_model.groups import UNKNOWN, Assignment, MultiModelState


class OracleClusters(MultiModel):
    """Train a model per true group (simulations only)."""

    name = "oracle-clusters"

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms; raises ``StrategyError`` where there are no true groups."""
        if not self.simulation.groups:
            raise StrategyError(
                "'oracle-clusters' needs 'groups', which only a simulation has; name them, or "
                "take r-dpcfl"
            )
        return super().propose(terms, disclosed)

    def initial_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return the true groups."""
        group = np.array([self._true_group(site) for site in updates.sites], dtype=np.int64)
        groups = self._groups()
        return state, Assignment(group, len(groups.sizes) if groups else 1)

    def request_training(self, state: MultiModelState, server_round: int, site: str) -> SiteRequest:
        """Return the model of the site's true group, for new sites too."""
        group = state.group_of(site)
        return SiteRequest(self._true_group(site) if group == UNKNOWN else group)

    def _true_group(self, site: str) -> int:
        groups = self._groups()
        if groups is None or not site.isdigit():
            return 0
        group: int = groups.of_site(int(site), sum(groups.sizes))
        return group

    def _groups(self) -> Any:
        """Return the simulation's groups, or None."""
        groups = tool("simulation.scenarios.groups")
        return groups.parse_groups(self.simulation.groups, task_for(self.terms))
