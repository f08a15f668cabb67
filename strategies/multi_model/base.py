"""Rules with several models: which site trains which, and how each model takes its sites' updates.

The record that goes from round to round holds one model before round 1, from which all sites
start, and after it every model by number (``wire.pack_models``). In round 1 all sites train that
common model, and the rule groups them afterwards, into one group to begin with if it has not heard
enough (``late_clusters.py``); from then on each site is sent the model of its
group alone, or all of them to choose from.

Within a group updates are averaged with the weights of any other rule, made to sum to 1 in the
group: ``robust-hdp+r-dpcfl`` is Robust-HDP's weights in R-DPCFL's clusters. That rule sees the
updates of all groups at once, since the noise of a client is better found among all than among
three. It does not see round 1, which may have batches of another size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model, flatten, unflatten
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates, exact_sum
from strategies.core.base import HDPStrategy
from strategies.core.checks import read_checked
from strategies.averaging.fedavg import FedAvg
from strategies.multi_model.groups import (
    GROUP,
    MODELS,
    OWN,
    UNKNOWN,
    Ask,
    Grouped,
    check_terms,
    group_of,
    largest_group,
    mean_model,
    models_of,
    weights_within,
)
from strategies.core.rule import Disclosed, State


class ManyModels(HDPStrategy):
    """Sites in groups, each group with a model of its own.

    Attributes:
        weighting: the rule whose weights count within a group.
        many_models: there is a model a group; the contract suite reads it.
    """

    weighting: ClassVar[type[HDPStrategy]] = FedAvg
    many_models: ClassVar[bool] = True

    def __init__(self, terms: RunTerms) -> None:
        """Prepare for the run of ``terms``.

        Raises:
            StrategyError: terms that go with one model alone.
        """
        check_terms(self.completed(terms))
        self._rule = self.weighting(terms)
        super().__init__(terms)
        self._rule.sampler = self.sampler
        self._held: tuple[ArrayRecord, ...] = ()
        self._models: tuple[ArrayRecord, ...] = ()
        self._record: ArrayRecord | None = None
        self._mean: ArrayRecord | None = None
        self._common = True
        self._asked: dict[str, Ask] = {}
        self._trained: dict[str, int] = {}

    # --- what a rule with several models writes ------------------------------------------------

    @abstractmethod
    def begin(self, updates: RoundUpdates) -> Grouped:
        """Return the groups after round 1, in which every site trained the common model."""

    def go_on(self, state: State, updates: RoundUpdates) -> Grouped:
        """Return the groups of a later round: as the sites trained, unless a rule differs."""
        group = updates.group
        if group is None:
            raise StrategyError("an update belongs to no model")
        return Grouped(group, max(models_of(state), int(group.max()) + 1))

    def ask(self, state: State, server_round: int, site: str) -> Ask:
        """Return what to send ``site`` after round 1: its group's model, unless a rule differs."""
        del server_round
        return Ask(self.home(state, site))

    def home(self, state: State, site: str) -> int:
        """Return the model of a site; one without a group yet: that of the most sites."""
        known = group_of(state, site)
        return largest_group(state) if known == UNKNOWN else known

    def is_common(self, state: State) -> bool:
        """Tell whether all sites train one model, from which every new one starts."""
        return not models_of(state)

    # --- HDPStrategy ---------------------------------------------------------------------------

    @classmethod
    def completed(cls, terms: RunTerms) -> RunTerms:
        """See :meth:`Rule.completed`."""
        return super().completed(cls.weighting.completed(terms))

    @classmethod
    def discloses(cls, terms: RunTerms) -> frozenset[str]:
        """See :meth:`Rule.discloses`."""
        return cls.weighting.discloses(terms)

    @classmethod
    def uses(cls, terms: RunTerms) -> frozenset[str]:
        """See :meth:`Rule.uses`."""
        return cls.weighting.uses(terms)

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """See :meth:`Rule.propose`."""
        return self._rule.propose(terms, disclosed)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """See :meth:`HDPStrategy.configure_train`."""
        self._asked, self._trained, self._mean = {}, {}, None
        return super().configure_train(server_round, arrays, config, grid)

    def layout(self, arrays: ArrayRecord) -> Arrays:
        """See :meth:`Rule.layout`; before round 1 the record is one model."""
        self._common, self._held = self.is_common(self.state), self._unpacked(arrays)
        return wire.read_own(self._held[0])

    def ask_of(self, kind: str, site: str) -> Hashable:
        """See :meth:`Rule.ask_of`."""
        if not models_of(self.state):
            return Ask(0)
        if kind != wire.TRAIN:
            return Ask(self.home(self.state, site))
        self._asked[site] = self.ask(self.state, self.report.server_round, site)
        return self._asked[site]

    def content_of(self, ask: Any, server_round: int, arrays: ArrayRecord) -> RecordDict:
        """See :meth:`Rule.content_of`: of several models those that ``ask`` names."""
        models = self._unpacked(arrays)
        own = models[ask.model] if ask.model < len(models) else self._initial()
        others: tuple[ArrayRecord, ...] = ()
        if ask.use == wire.CHOOSE:
            own, *rest = models
            others = tuple(rest)
        elif ask.use == wire.PULL:
            self._mean = self._mean or mean_model(models)
            others = (self._mean,)
        return wire.write_instructions(
            self.terms, server_round, own, others=others, use=ask.use if others else ""
        )

    def read_row(self, site: str, reply: Message, size: int) -> npt.NDArray[np.float32]:
        """See :meth:`Rule.read_row`; with it comes the site's choice, where it was asked for."""
        ask = self._asked.get(site, Ask(0))
        chooses = ask.use == wire.CHOOSE and len(self._held) > 1
        update = read_checked(reply, size, with_choice=chooses)
        self._trained[site] = (
            wire.read_choice(reply.content, len(self._held)) if chooses else ask.model
        )
        return update

    def grouped(self, came: RoundUpdates) -> RoundUpdates:
        """See :meth:`Rule.grouped`."""
        group = np.array([self._trained[site] for site in came.sites], dtype=np.int64)
        chose = [self._asked.get(site, Ask(0)).use == wire.CHOOSE for site in came.sites]
        return replace(came, group=group, chose=np.array(chose, dtype=np.bool_))

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`HDPStrategy.combine`; ``cluster`` in the journal is each site's model."""
        begins = not models_of(state)
        found = self.begin(updates) if begins else self.go_on(state, updates)
        others = {name: values for name, values in state.items() if not name.startswith(OWN)}
        weighed, outcome = self._rule.combine(others, updates, noise)
        after = {
            **{name: values for name, values in state.items() if name.startswith(OWN)},
            **(self._rule.initial_state() if begins else weighed),
            **{f"{OWN}{name}": values for name, values in found.state.items()},
            MODELS: np.array([float(found.models)]),
        }
        for site, group in zip(updates.sites, found.group, strict=True):
            after[GROUP + site] = np.array([float(group)])
        weights = weights_within(outcome.weights, found.group)
        moves = np.zeros((found.models, updates.updates.shape[1]), np.float32)
        for group in np.unique(found.group):
            rows = np.flatnonzero(found.group == group)
            moves[group] = exact_sum(weights[rows], updates.updates, rows)
        gauges = {
            **outcome.gauges,
            **found.gauges,
            "cluster": found.group.astype(np.float64),
            "clusters": float(found.models),
        }
        return after, Outcome(moves, weights, gauges, group=found.group)

    def moved(self, outcome: Outcome) -> ArrayRecord:
        """See :meth:`Rule.moved`; a model that is new starts from the initial one."""
        before = self._held * (len(outcome.update) if self._common else 1)
        models = []
        for i, move in enumerate(outcome.update):
            start = before[i] if i < len(before) else self._initial()
            vector = flatten(wire.read_own(start))
            vector += move
            models.append(wire.write_model(unflatten(vector, self._like)))
        self._record, self._models = wire.pack_models(models), tuple(models)
        return self._record

    def assigned(self, arrays: Arrays) -> tuple[tuple[Arrays, ...], dict[str, int]]:
        """See :meth:`Rule.assigned`."""
        if not models_of(self.state):
            return (arrays,), {}
        return tuple(wire.split_models(arrays)), {
            site: self.home(self.state, site) for site in self.roster.nodes
        }

    def _unpacked(self, arrays: ArrayRecord) -> tuple[ArrayRecord, ...]:
        """Return the models in ``arrays``; the last record's are kept, for every site is asked."""
        if arrays is not self._record:
            packed = bool(models_of(self.state))
            self._record, self._models = arrays, wire.unpack_models(arrays) if packed else (arrays,)
        return self._models

    def _initial(self) -> ArrayRecord:
        terms = self.terms
        return wire.write_model(arrays_of(build_model(terms.model, task_for(terms), terms.seed)))
