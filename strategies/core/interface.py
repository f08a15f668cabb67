"""Types between a strategy and the kernel."""

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
class SiteRequest:
    """Content of a message to one site; equal requests share a message.

    Attributes:
        model: the number of the model to train; one that does not exist yet is the initial model.
        use: ``wire.CHOOSE``: all models, to choose one; ``wire.PULL``: also the mean of all models,
            to be pulled to; empty: that model alone.
        project: see ``wire.Instructions``: the digest of an earlier model, for one number along the
            step since; ``server_wire.WHOLE``; None: the site need not keep the model.
        along: the direction of that step, by which the number is turned into a row.
        own: the site, where the fields below are its alone; else empty, and they are unused.
        of_noise: text of the run's source of noise, see ``wire.Instructions``; empty: none.
        apart: from ``model`` to the one that the site trains from, float64, shape ``(d,)``.
        offset: vector that the site adds to its model in this round, in equal parts after each of
            its steps, float32, shape ``(d,)``.
    """

    model: int = 0
    use: str = ""
    project: str | None = None
    along: Direction | None = field(default=None, compare=False, repr=False)
    own: str = ""
    of_noise: str = ""
    apart: npt.NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    offset: npt.NDArray[np.float32] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class RoundStart:
    """Facts at the beginning of a round.

    Attributes:
        server_round: from 1.
        arrays: the model or models of the round.
        sites: the sites online with all required facts, in order.
        answered: the sites with a readable reply to the last round.
        disclosed: facts of these sites, and of others.
    """

    server_round: int
    arrays: ArrayRecord
    sites: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    disclosed: Disclosed = field(default_factory=dict)


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
