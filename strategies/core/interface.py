"""Types between a strategy and its base class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.linalg.step_direction import Direction

State = Any
"""State between rounds: a frozen dataclass of the strategy's own.

``strategy_state.py`` saves it in checkpoints. Each strategy annotates the class that it uses;
:class:`Stateless` where there is nothing to carry.
"""

Disclosed = Mapping[str, Mapping[str, float]]
"""Facts that the sites disclosed: site → fact → number."""


@dataclass(frozen=True)
class Stateless:
    """Empty state between rounds."""


@dataclass(frozen=True)
class Declaration:
    """Declaration of a strategy under some terms, before any request.

    The contract suite (``contract.py``) tests the three properties.

    Attributes:
        required_facts: facts that a site must disclose to take part, see ``wire.SITE_KEYS``.
        optional_facts: facts that the strategy uses where a site discloses them.
        is_weighted_sum: linear: every update is ``Outcome.scale``·Σᵢ wᵢuᵢ of its own outcome's
            weights, or of its ``row_weights``. Guards act on a linear update by its weights: they
            bound a client's share, and take a refused client's part out of the model. A strategy
            that projects, clips, trims or adds noise declares False.
        is_convex: every coordinate of the update lies between the least and the greatest of the
            clients'. A strategy that projects, rescales or adds noise declares False.
        is_final: no later round changes the moves of a round, see ``Outcome.revision``. Where one
            does, guards take no refused client's earlier part out.
    """

    required_facts: frozenset[str] = frozenset()
    optional_facts: frozenset[str] = frozenset()
    is_weighted_sum: bool = True
    is_convex: bool = True
    is_final: bool = True


@dataclass(frozen=True)
class SiteRequest:
    """Content of a message to one site; equal requests share a message.

    Attributes:
        model: the number of the model to train; one that does not exist yet is the initial model.
        use: ``wire.CHOOSE``: all models, to choose one; ``wire.PULL``: also the mean of all models,
            to be pulled to; empty: that model alone.
        project: see ``wire.Instructions``: the digest of an earlier model, for one number along the
            step since; ``wire.WHOLE``; None: the site need not keep the model.
        along: the direction of that step, by which the number is turned into a row.
        own: the site, where the fields below are its alone; else empty, and they are unused.
        start: the model to train from in place of ``model``, float32, shape ``(d,)``.
        offset: vector that the site adds to its model in this round, in equal parts after each of
            its steps, float32, shape ``(d,)``.
    """

    model: int = 0
    use: str = ""
    project: str | None = None
    along: Direction | None = field(default=None, compare=False, repr=False)
    own: str = ""
    start: npt.NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    offset: npt.NDArray[np.float32] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class RoundStart:
    """Facts at the beginning of a round.

    Attributes:
        server_round: from 1.
        arrays: the model or models of the round.
        sites: the sites online with all required facts, in order.
        answered: the sites with a readable reply to the last round.
    """

    server_round: int
    arrays: ArrayRecord
    sites: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoundSetup:
    """Decisions of a strategy at the beginning of a round.

    Attributes:
        state: for the round.
        terms: to send.
        refused: site → why it is not asked.
    """

    state: State
    terms: RunTerms
    refused: Mapping[str, str] = field(default_factory=dict)
