"""What an aggregation rule writes, and what it is when it writes nothing.

A rule names what it needs disclosed and writes ``combine``; rules that send sites different
contents, or have several models, write some of the rest. ``base.py`` runs the round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp.strategy import Strategy

from hdpfl_flower import wire
from hdpfl_flower.config.terms import AUTO, RunTerms
from hdpfl_flower.models.networks import Arrays, flatten, unflatten
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.checks import read_checked
from strategies.core.privacy_statement import describe

State = Mapping[str, npt.NDArray[np.float64]]
"""What a rule carries from round to round: arrays by name, so that a checkpoint can hold it."""

Disclosed = Mapping[str, Mapping[str, float]]
"""What each site disclosed: site → fact → number."""


class Rule(Strategy):
    """The mathematics of a round.

    Attributes:
        name: as users write it in ``strategy``.
        terms: the run's, as the sites get them.
    """

    name: ClassVar[str]
    terms: RunTerms
    _like: Arrays

    @classmethod
    def discloses(cls, terms: RunTerms) -> frozenset[str]:
        """Return the facts of a site that the rule weighs by under ``terms``."""
        del terms
        return frozenset()

    @classmethod
    def uses(cls, terms: RunTerms) -> frozenset[str]:
        """Return the facts of a site that the rule uses where it is told them."""
        del terms
        return frozenset()

    @classmethod
    def is_weighted_sum(cls, terms: RunTerms) -> bool:
        """Tell whether every round's update is ``scale``·Σᵢ wᵢuᵢ of its own outcome's weights.

        Guards act on such an update by its weights: they bound a site's share, and take out of the
        model what a site gave. A rule that projects, clips or noises has to say no.
        """
        del terms
        return True

    @classmethod
    def completed(cls, terms: RunTerms) -> RunTerms:
        """Return the terms with what they leave to the rule; what they say stays, 0 too.

        Known before any site is asked, so that what no site can follow is refused up front.
        """
        left = {
            "prox_lambda": (terms.prox_lambda == AUTO, 0.0),
            "personal_noise": (terms.personal_noise == AUTO, "none"),
        }
        found = {name: value for name, (is_open, value) in left.items() if is_open}
        return terms.updated(**found) if found else terms

    def initial_state(self) -> State:
        """Return the state before the first round."""
        return {}

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms to send, given what the sites disclosed."""
        del disclosed
        return terms

    def project_for(self, site: str) -> str | None:
        """Return what this round's instructions ask of ``site``, see ``wire.Instructions``."""
        del site
        return None

    def ask_of(self, kind: str, site: str) -> Hashable:
        """Return what tells the content of a message to ``site`` from those to others."""
        return self.project_for(site) if kind == wire.TRAIN else None

    def content_of(self, ask: Any, server_round: int, arrays: ArrayRecord) -> RecordDict:
        """Return the content of the messages to the sites of which ``ask`` is asked."""
        return wire.write_instructions(self.terms, server_round, arrays, ask)

    def layout(self, arrays: ArrayRecord) -> Arrays:
        """Return the arrays of one model, shaped like an update."""
        return wire.read_own(arrays)

    def moved(self, outcome: Outcome) -> ArrayRecord:
        """Return what the next round begins with, the round's model or models moved."""
        model = flatten(self._like)
        model += outcome.update
        return wire.write_model(unflatten(model, self._like))

    def assigned(self, arrays: Arrays) -> tuple[tuple[Arrays, ...], dict[str, int]]:
        """Return the models in ``arrays`` and which one each site uses; no site: all the first."""
        return (arrays,), {}

    def read_row(self, site: str, reply: Message, size: int) -> npt.NDArray[np.float32]:
        """Return the update in the reply of ``site``, shape ``(size,)``; a number is lifted to one.

        Raises:
            wire.WireError: the site sent a code instead, or something that cannot be used.
        """
        del site
        return read_checked(reply, size)

    def grouped(self, came: RoundUpdates) -> RoundUpdates:
        """Return the round's updates with the models they belong to, where there are several."""
        return came

    def privacy(self) -> dict[str, Any]:
        """Return what the run promises to whom, as far as the rule knows it, for the journal."""
        return describe(self.terms)

    @abstractmethod
    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the next state and what to add to the model.

        Args:
            state: as the last round left it; not changed.
            updates: what came and passed the checks, at least one row; not changed.
            noise: the server's own source, for rules that add noise centrally.
        """
