"""Private choices of a model: how often a client chooses, and its model by the votes it cast.

A choice is one noisy maximum (``hdpfl_flower/privacy/noisy_max.py``), which the client's plan pays
for. Each choice may err; a client's model is the one with the most votes, where the k-th choice
counts k: the models grow apart, and later choices are surer. The paper keeps the last choice alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.updates import RoundUpdates
from strategies.core.interface import SiteRequest
from strategies.multi_model.groups import UNKNOWN, Groups, MultiModelState


@dataclass(frozen=True)
class Votes:
    """The votes that a client has cast.

    Attributes:
        choices: how often it has chosen.
        weights: Σ k over its choices of each model, shape ``(M,)``, whole numbers.
    """

    choices: int
    weights: tuple[int, ...]

    def plus(self, model: int) -> Votes:
        """Return the votes after one more choice, of ``model``."""
        weights = list(self.weights)
        # The k-th choice counts k, in whole numbers: votes can be compared exactly.
        weights[model] += self.choices + 1
        return Votes(self.choices + 1, tuple(weights))


@dataclass(frozen=True)
class ChoiceState(MultiModelState):
    """The state of a strategy whose clients choose.

    Attributes:
        votes: client → its votes, of those that have chosen.
    """

    votes: dict[str, Votes] = field(default_factory=dict)

    def choices_of(self, client: str) -> int:
        """Return how many choices a client has made."""
        return self.votes[client].choices if client in self.votes else 0

    def voted(self, client: str) -> int:
        """Return the model with the most votes of a client, the first of equals; or ``UNKNOWN``."""
        return int(np.argmax(self.votes[client].weights)) if client in self.votes else UNKNOWN


ChoiceT = TypeVar("ChoiceT", bound=ChoiceState)


def planned_selections(terms: RunTerms) -> int:
    """Return how often a client chooses: as the terms state, or in a tenth of the rounds; 0: never.

    >>> planned_selections(RunTerms(rounds=25)), planned_selections(RunTerms(selections=3))
    (3, 3)
    """
    if not terms.selection_share:
        return 0
    return terms.selections or math.ceil(terms.rounds / 10)


def plan_choices(terms: RunTerms) -> RunTerms:
    """Return the terms with the number of choices, ``selections``.

    Raises:
        StrategyError: terms with which no site could plan for choices.
    """
    selections = planned_selections(terms)
    if terms.noise_multiplier or terms.participations or terms.calibration != "pld":
        raise StrategyError(
            f"'{terms.strategy}': sites plan for a first batch or choices of their own; leave "
            "'noise-multiplier', 'participations' and 'calibration' out"
        )
    if selections and not task_for(terms).classes:
        raise StrategyError(
            f"'{terms.strategy}': sites choose by the records that a model gets right, and a "
            "regression or survival has none; set 'selection-share' to 0"
        )
    return terms.updated(selections=selections)


def may_choose(state: ChoiceState, client: str, selections: int) -> bool:
    """Return whether a client's plan has a choice left, and there is more than one model."""
    return state.models > 1 and state.choices_of(client) < selections


def request_choice(model: int) -> SiteRequest:
    """Return the request for a choice among all models, to a client that has ``model`` now."""
    return SiteRequest(model, wire.CHOOSE)


def count_votes(
    state: ChoiceT, updates: RoundUpdates, group: Groups
) -> tuple[ChoiceT, npt.NDArray[np.float64]]:
    """Return the state with the votes of the clients that chose, and 1 for each of them."""
    chose = updates.chose if updates.chose is not None else np.zeros(len(group), np.bool_)
    votes, none = dict(state.votes), Votes(0, (0,) * state.models)
    for client, model, is_choice in zip(updates.sites, group.tolist(), chose, strict=True):
        if is_choice:
            votes[client] = votes.get(client, none).plus(model)
    return replace(state, votes=votes), chose.astype(np.float64)
