"""Strategies with several models: each client trains its group's model.

In round 1 all clients train one common model, and the strategy groups them afterwards, into one
group where too little is known yet (``late_clusters.py``). From then on the record that Flower
passes from round to round holds every model by number, and each client is sent the model of its
group alone, or all of them to choose from.

Within a group updates are averaged with the weights of any other strategy, made to sum to 1 in the
group: ``robust-hdp+r-dpcfl`` is Robust-HDP's weights in R-DPCFL's clusters. The strategy that
weighs sees the updates of all groups at once, since the noise of a client is better estimated among
all than among three. It does not see round 1, which may have batches of another size.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from hdpfl_flower import wire
from hdpfl_flower.linalg.sums import exact_sum
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.averaging.fedavg import FedAvg
from strategies.core.base import Declaration, Disclosed, HDPStrategy
from strategies.core.declaration import Needs
from strategies.core.interface import SiteRequest
from strategies.multi_model.groups import (
    UNKNOWN,
    Assignment,
    MultiModelState,
    trained_groups,
    weights_within,
)

StateT = TypeVar("StateT", bound=MultiModelState)


class MultiModel(HDPStrategy):
    """Clients in groups, each with a model of its own.

    A subclass writes ``initial_groups``; ``update_groups``, ``request_training`` and
    ``model_of_site`` where its groups change, or where a client does not train its group's model.
    """

    default_weights = FedAvg
    needs_of_weights: ClassVar[Needs] = {
        "weights_alone": "take the clusters after weights, such as 'mmse'"
    }

    # --- written by a strategy with several models ---------------------------------------------

    @abstractmethod
    def initial_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return the state and the groups after round 1, with the common model."""

    def update_groups(self, state: StateT, updates: RoundUpdates) -> tuple[StateT, Assignment]:
        """Return the state and the groups of a later round, as trained."""
        group = trained_groups(updates)
        return state, Assignment(group, max(state.models, int(group.max()) + 1))

    def request_training(self, state: Any, server_round: int, site: str) -> SiteRequest:
        """Return the model of the site's group, to train after round 1."""
        del server_round
        return SiteRequest(self.model_of_site(state, site))

    def model_of_site(self, state: Any, site: str) -> int:
        """Return a site's model; without a group, the largest group's."""
        group: int = state.group_of(site)
        return state.largest_group if group == UNKNOWN else group

    def declare(self) -> Declaration:
        """Declare the facts of the weights; a weighted sum per group, with a model each."""
        return replace(
            super().declare(),
            is_weighted_sum=True,
            is_convex=True,
            one_model=False,
            asks_choices=self.choice is not None,
        )

    def initial_state(self, disclosed: Disclosed | None = None) -> Any:
        """Return a state without groups; subclasses with another state override it."""
        return MultiModelState(weighting=self.weights.initial_state(disclosed))

    def request(
        self, state: Any, server_round: int, site: str, kind: str = wire.TRAIN
    ) -> SiteRequest:
        """Return the common model up to round 1, later the group's model."""
        if not state.models:
            return SiteRequest()
        if kind != wire.TRAIN:
            return SiteRequest(self.model_of_site(state, site))
        return self.request_training(state, server_round, site)

    def combine(
        self, state: Any, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[Any, Outcome]:
        """Return every model's weighted mean of its clients' updates.

        The journal's ``cluster`` is each site's model.
        """
        is_first = not state.models
        group_by = self.initial_groups if is_first else self.update_groups
        after, assignment = group_by(state, updates)
        inner, outcome = self.weights.combine(state.weighting, updates, noise)
        if is_first:  # round 1 may have batches of another size: no noise to learn from
            inner = self.weights.initial_state()
        trained = zip(updates.sites, assignment.group.tolist(), strict=True)
        after = replace(
            after,
            models=assignment.models,
            groups={**after.groups, **dict(trained)},
            weighting=inner,
        )
        weights = weights_within(outcome.weights, assignment.group)
        # A model without training in this round has a step of 0.
        steps = np.zeros((assignment.models, updates.updates.shape[1]), np.float32)
        for group in np.unique(assignment.group):
            rows = np.flatnonzero(assignment.group == group)
            steps[group] = exact_sum(weights[rows], updates.updates, rows)
        gauges = {
            **outcome.gauges,
            **assignment.gauges,
            "cluster": assignment.group.astype(np.float64),
            "clusters": float(assignment.models),
        }
        from_first = self.is_common(state)
        return after, Outcome(steps, weights, gauges, group=assignment.group, from_first=from_first)

    def is_common(self, state: Any) -> bool:
        """Return whether all clients train one model, the start of new models."""
        return not state.models
