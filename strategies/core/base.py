"""Base class of all strategies: state in, state out.

A strategy subclasses :class:`HDPStrategy` and writes ``combine``; ten lines are a whole one. A
part, such as a projection, acts around another strategy, its ``weights``. The kernel
(``kernel.py``) holds one strategy, and has the rounds, the sites, the messages and the checks.

The hooks, in the order of a run; only ``combine`` must be written:

| hook | returns |
|---|---|
| `declare` | facts that sites must or may disclose; offered properties |
| `complete_terms` | values for terms that are left open |
| `propose` | the terms to send, given the disclosed facts |
| `initial_state` | the state before round 1, a frozen dataclass |
| `begin_round` | the state, terms and refused sites of a round |
| `request` | the model that a site is sent, and its request |
| `combine` | the next state and the step of the model |
| `after_step` | the state after the server's step |
| `privacy` | the promise of the run, for the journal |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from hdpfl_flower import wire
from hdpfl_flower.config.kind import parse_kind
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Settings
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import TermsError
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.releases.base import ReleaseKind
from hdpfl_flower.releases.given import completed
from hdpfl_flower.releases.moments import Moments
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.work import Auto, Plain, Work
from hdpfl_flower.work.choice import Choice
from hdpfl_flower.work.second import SecondModel
from strategies.core.declaration import BARE, Declaration, Needs, check_needs
from strategies.core.interface import (
    Disclosed,
    RoundSetup,
    RoundStart,
    SiteRequest,
    State,
    Stateless,
)
from strategies.core.privacy_statement import describe
from strategies.core.sampler import Sampler
from strategies.server_step.step import NoSettings, table_of

__all__ = ["Declaration", "Disclosed", "HDPStrategy", "State", "Stateless", "table_of"]


class HDPStrategy(ABC):
    """Strategy that combines the updates of sites, each with its own noise.

    Attributes:
        name: the name as users write it in ``strategy``, or after a ``+``.
        default_weights: for a part: the strategy that weighs if the run names none. None means that
            the strategy itself weighs.
        needs_of_weights: for a part: properties that the strategy that weighs must offer.
        work: local work of a round, if the run config leaves it to the strategy.
        second: second model of each site, if the run config leaves it to the strategy.
        choice: private choices among its models, if the run config leaves them to the strategy.
            None means that it asks for no choices.
        after: releases after the last round, in addition to those of the run config.
        settings_type: class of the strategy's settings, in the strategy's own file.
        settings: the strategy's settings in this run.
        weights: for a part: the strategy that weighs.
        config: run config with completed terms.
        terms: terms of the run as the sites get them in this round.
        server: keys that only the server reads.
        simulation: keys from which simulated sites are drawn.
        sampler: draws the sites of each round; a part and its weights share one.
        asked: the sites that are asked in this round.
    """

    name: ClassVar[str]
    default_weights: ClassVar[type[HDPStrategy] | None] = None
    needs_of_weights: ClassVar[Needs] = {}
    work: ClassVar[Work] = Plain()
    second: ClassVar[SecondModel | None] = None
    choice: ClassVar[Choice | None] = None
    after: ClassVar[tuple[ReleaseKind, ...]] = ()
    settings_type: ClassVar[type[Settings]] = NoSettings
    _table: ClassVar[str] = ""
    settings: Settings
    weights: HDPStrategy
    sampler: Sampler
    asked: tuple[str, ...] = ()

    def __init__(self, config: RunConfig, weights: HDPStrategy | None = None) -> None:
        """Prepare for the run of ``config``.

        Args:
            config: of the run.
            weights: of a part: the strategy that weighs; None: ``default_weights``.

        Raises:
            TermsError: a setting is wrong, or ``weights`` lack a property that the part needs.
        """
        if self.default_weights:
            weights = (weights or self.default_weights(config)).inside()
            needs, offers = {**BARE, **self.needs_of_weights}, weights.declare()
            check_needs(f"'strategy': '+{self.name}'", needs, offers, weights.name)
            self.weights = weights
        self.terms = self.complete_terms(config.terms)
        self.config = replace(config, terms=self.terms)
        self.server, self.simulation = config.server, config.simulation
        table = table_of(type(self))
        self.settings = self.settings_type.parse(config.settings.get(table, {}), f"{table}.")
        self.sampler = weights.sampler if weights else Sampler(config)

    def inside(self) -> HDPStrategy:
        """Return the form of the strategy that a part acts around."""
        return self

    def declare(self) -> Declaration:
        """Return required facts and offered properties under ``terms``; a part asks its weights."""
        if not self.default_weights:
            return Declaration()
        offers = self.weights.declare()
        return replace(offers, is_bare=False, weights_alone=False, adds_noise=False)

    def complete_terms(self, terms: RunTerms) -> RunTerms:
        """Return the terms with open values filled in; stated values stay, also 0.

        The hook is called before any site is asked, so that impossible terms are refused early.
        """
        if self.default_weights:
            terms = self.weights.complete_terms(terms)
        return terms.updated(
            work=work_of(self.work, terms.work, terms.strategy),
            second=terms.second or self.second,
            choice=terms.choice or self.choice,
            first=completed(terms, "first", (Moments(),)),
            after=completed(terms, "after", self.after),
        )

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms to send; called once, before round 1.

        Args:
            terms: completed terms.
            disclosed: facts of every site that takes part.
        """
        return self.weights.propose(terms, disclosed) if self.default_weights else terms

    def initial_state(self, disclosed: Disclosed | None = None) -> State:
        """Return the state before the first round; a part returns the state of its weights.

        Args:
            disclosed: facts of the sites that take part; None before they are known.
        """
        return self.weights.initial_state(disclosed) if self.default_weights else Stateless()

    def begin_round(self, state: State, start: RoundStart) -> RoundSetup:
        """Return the state, the terms and the refused sites of a round."""
        del start
        return RoundSetup(state, self.terms)

    def request(
        self, state: State, server_round: int, site: str, kind: str = wire.TRAIN
    ) -> SiteRequest:
        """Return the content of a message of ``kind`` to ``site``."""
        del state, server_round, site, kind
        return SiteRequest()

    @abstractmethod
    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the next state and the step of the model.

        Args:
            state: the state after the last round; it is not changed.
            updates: the updates that passed the checks, at least one row; they are not changed.
            noise: random stream of the server, for strategies that add noise centrally.
        """

    def after_step(self, state: State, moved: Outcome) -> State:
        """Return the state after the server's step.

        Args:
            state: the state that ``combine`` returned; it is not changed.
            moved: the move of the model. Its gauges have ``server_rate`` if that is not 1, and
                ``past_scale`` if a revision also changed the length of earlier moves.
        """
        del moved
        return state

    def privacy(self, state: State) -> dict[str, Any]:
        """Return the run's promise to its sites, for the journal."""
        del state
        return describe(self.terms)


def work_of(default: Work, given: Work, strategy: str) -> Work:
    """Return the work of a run, filled in from the strategy's.

    Args:
        default: of the strategy; any kind can replace plain work; its pull and first batch stay.
        given: of the run config.
        strategy: its name.

    Raises:
        TermsError: a kind that is not the strategy's, or a setting of another kind.
    """
    if isinstance(given, Auto):
        if not given.changes:
            return default
        try:
            return parse_kind(type(default), {**default.as_config(), **dict(given.changes)})
        except ValueError as error:
            raise TermsError(f"run config: 'work' of '{strategy}' {error}") from None
    if isinstance(default, (Plain, type(given))):
        return given.filled(default)
    raise TermsError(
        f"run config: 'work.kind' is '{given.kind}', but '{strategy}' works '{default.kind}': "
        "leave it out, or take another strategy"
    )
