"""Private choices of a model: number of choices, and votes.

A choice is one noisy maximum (``hdpfl_flower/privacy/noisy_max.py``), which the client's plan pays
for. Each choice may err; a client's model is the one with the most votes, where the k-th choice
counts k: the models grow apart, and later choices are surer. The paper keeps the last choice alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hdpfl_flower import wire
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
    """State of a strategy with private choices.

    Attributes:
        votes: client → its votes, of those that have chosen.
    """

    votes: dict[str, Votes] = field(default_factory=dict)

    def choices_of(self, client: str) -> int:
        """Return how many choices a client has made."""
        return self.votes[client].choices if client in self.votes else 0

    def voted(self, client: str) -> int:
        """Return the first model with the most votes, or ``UNKNOWN``."""
        return int(np.argmax(self.votes[client].weights)) if client in self.votes else UNKNOWN


ChoiceT = TypeVar("ChoiceT", bound=ChoiceState)


def may_choose(state: ChoiceState, client: str, choices: int) -> bool:
    """Return whether the plan has a choice left among several models."""
    return state.models > 1 and state.choices_of(client) < choices


def request_choice(model: int) -> SiteRequest:
    """Request a choice among all models from a client with ``model``."""
    return SiteRequest(model, wire.CHOOSE)


def count_votes(
    state: ChoiceT, updates: RoundUpdates, group: Groups
) -> tuple[ChoiceT, npt.NDArray[np.float64]]:
    """Return the state with the new votes, and 1 per client that chose."""
    chose = updates.chose if updates.chose is not None else np.zeros(len(group), np.bool_)
    votes, none = dict(state.votes), Votes(0, (0,) * state.models)
    for client, model, is_choice in zip(updates.sites, group.tolist(), chose, strict=True):
        if is_choice:
            votes[client] = votes.get(client, none).plus(model)
    return replace(state, votes=votes), chose.astype(np.float64)
