"""IFCA under differential privacy: sites choose among M models.

Ghosh, Chung, Yin and Ramchandran, An Efficient Framework for Clustered Federated Learning (NeurIPS
2020), in the form that is R-DPCFL's baseline (Malekmohammadi, Taik and Farnadi, TMLR 2025): sites
choose privately in a tenth of the rounds (``choice``) and keep their model then. All models
start from the common one, where every choice is a toss: in round 1 the server tosses, and nothing
is charged for it. The choices are charged in one accounting with the training.

Threat model: an untrusted server; each site's noise protects its records in updates and choices
alike. No site discloses anything.

Known limit: the models must grow apart by chance, which noise hides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from hdpfl_flower.config.settings import Count
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.releases.of_run import choices_of
from hdpfl_flower.updates import RoundUpdates
from hdpfl_flower.work.choice import Gaussian
from strategies.core.base import table_of
from strategies.core.interface import Disclosed, SiteRequest
from strategies.multi_model.base import MultiModel
from strategies.multi_model.groups import UNKNOWN, Assignment, ClusterSettings, check_clusters
from strategies.multi_model.private_choice import (
    ChoiceState,
    count_votes,
    may_choose,
    request_choice,
)


class IFCASettings(ClusterSettings):
    """How many models there are."""

    clusters: Count = Field(0, description="Number of models M: 2 or more. You set it.")


class IFCA(MultiModel):
    """Train M models from one start; each client chooses its model."""

    name, choice = "ifca", Gaussian()
    settings_type = IFCASettings
    settings: IFCASettings

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms; ``StrategyError`` without a number of models."""
        if self.settings.clusters < 2 or not choices_of(terms):
            raise StrategyError(
                "'ifca' needs the number of models, and choices: set "
                f"'{table_of(type(self))}.clusters' to 2 or more, and 'choice.kind' to a kind "
                "other than 'none'"
            )
        check_clusters(self.settings, table_of(type(self)), len(disclosed))
        return super().propose(terms, disclosed)

    def initial_state(self, disclosed: Disclosed | None = None) -> ChoiceState:
        """Return no groups, no votes."""
        return ChoiceState(weighting=self.weights.initial_state(disclosed))

    def initial_groups(
        self, state: ChoiceState, updates: RoundUpdates
    ) -> tuple[ChoiceState, Assignment]:
        """Return a group of each client, by a seeded toss."""
        models = max(self.settings.clusters, 1)
        # A generator a site: its toss does not depend on other answers.
        tosses = [np.random.default_rng([self.simulation.seed, *s.encode()]) for s in updates.sites]
        group = np.array([int(t.integers(models)) for t in tosses], np.int64)
        return state, Assignment(group, models)

    def request_training(self, state: ChoiceState, server_round: int, site: str) -> SiteRequest:
        """Request a choice while choices are left, then training of the kept model."""
        model = self.model_of_site(state, site)
        if may_choose(state, site, choices_of(self.terms)):
            return request_choice(model)
        return SiteRequest(model)

    def update_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return the groups as trained; choices count as votes."""
        state, assignment = super().update_groups(state, updates)
        state, chose = count_votes(state, updates, assignment.group)
        return state, replace(assignment, gauges={"chose": chose})

    def model_of_site(self, state: ChoiceState, site: str) -> int:
        """Return the model with the most votes; before any choice, a random one."""
        voted = state.voted(site)
        return super().model_of_site(state, site) if voted == UNKNOWN else voted
