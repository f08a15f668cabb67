"""Base class of all strategies: one federated round.

A strategy subclasses :class:`HDPStrategy`, declares the facts that it needs and writes ``combine``.
Any ServerApp can run it with Flower's own ``start``; ours runs it with
``server_app/run/rounds.py``. Only ``round_messages.py``, ``roster.py``, ``exchange.py`` and
``model_record.py`` read a Message.

The hooks, in the order of a run; only ``combine`` must be written:

| hook | returns |
|---|---|
| `declare` | facts that sites must or may disclose; linear or not, convex or not |
| `complete_terms` | values for terms that are left open; refusal of impossible terms |
| `propose` | the terms to send, given the disclosed facts |
| `initial_state` | the state before round 1, a frozen dataclass |
| `begin_round` | the state, terms and refused sites of a round |
| `request` | the model that a site is sent, and its request |
| `combine` | the next state and the step of the model |
| `after_step` | the state after the server's step |
| `privacy` | the promise of the run, for the journal |
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hdpfl_flower import wire
from hdpfl_flower.after import After
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.settings import NoSettings, Settings
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.site_summary import SiteMeasures
from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_flower.work import Plain, Work, work_of
from hdpfl_flower.work.choice import Choice
from hdpfl_flower.work.second import SecondModel
from strategies.core.checks import (
    NO_REPLY,
    check_outcome,
    read_test,
)
from strategies.core.interface import (
    Declaration,
    Disclosed,
    RoundSetup,
    RoundStart,
    SiteRequest,
    State,
    Stateless,
)
from strategies.core.model_record import ModelRecord
from strategies.core.privacy_statement import describe
from strategies.core.reported_model import ReportedModel
from strategies.core.roster import Roster
from strategies.core.round_messages import RoundMessages
from strategies.core.round_report import RoundReport
from strategies.core.sampler import Sampler
from strategies.core.site_metrics import measured_at_sites
from strategies.guards.registry import make_guard
from strategies.server_step.found import step_of
from strategies.server_step.step import ServerStep, table_of

log = logging.getLogger("hdpfl.server")

__all__ = ["Declaration", "Disclosed", "HDPStrategy", "State", "Stateless", "parts_of", "table_of"]


class HDPStrategy(Strategy):
    """Federated rounds of sites with their own noise, without a trusted party.

    Attributes:
        name: as users write it in ``strategy``.
        several_models: there is a model a group of sites; the state has ``models``, their number, 0
            before the end of round 1.
        constant_weights: it weighs by disclosed facts alone, the same in every round.
        work: local work of a round, where the run config leaves it to the strategy.
        second: second model of each site, likewise.
        choice: private choices among its models, likewise; None: it asks for none.
        after: work after the last round, beside the run config's.
        weighting: the strategy that weighs, for clusters, projections, splittings and control
            variates, which act around its weights; absent: it weighs by itself.
        server_step: how the model moves by the aggregate; one after a ``+`` replaces it.
        settings_type: the class of its settings, in the strategy's own file.
        settings: the strategy's own, of the run.
        terms: the run's, as the sites get them.
        server: the keys that the server alone reads.
        simulation: source of a simulation's sites.
        needs: facts that each site must disclose to take part, see ``wire.SITE_KEYS``.
        welcomes: facts that the strategy uses where sites disclose them, and can do without.
        state: after the last round.
        step_state: that of the server's step.
        reported: which model the run reports.
        messages: to the sites, and their replies.
        prepared: whether this process has waited for the sites.
        settled: the terms are final, also after a resume.

    Guarantees:
        Whatever the replies hold, a round ends with a finite model of the same names and shapes,
        or with the model it began with; a bad reply is dropped and recorded.
    """

    name: ClassVar[str]
    several_models: ClassVar[bool] = False
    constant_weights: ClassVar[bool] = False
    weighting: ClassVar[type[HDPStrategy]]
    server_step: ClassVar[type[ServerStep]] = ServerStep
    work: ClassVar[Work] = Plain()
    second: ClassVar[SecondModel | None] = None
    choice: ClassVar[Choice | None] = None
    after: ClassVar[After] = After()
    settings_type: ClassVar[type[Settings]] = NoSettings
    _table: ClassVar[str] = ""
    _weighting: HDPStrategy
    settings: Settings
    terms: RunTerms
    server: ServerTerms
    simulation: SimulationTerms

    def __init__(self, config: RunConfig) -> None:
        """Prepare for the run of ``config``."""
        if weighting := weighting_of(type(self)):
            self._weighting = weighting(config)
        config = replace(config, terms=self.complete_terms(config.terms))
        self.prepared = self.settled = False
        self.terms = config.terms
        self.server, self.simulation = config.server, config.simulation
        table = table_of(type(self))
        self.settings = self.settings_type.parse(config.settings.get(table, {}), f"{table}.")
        declared = self.declare()
        self.needs = declared.required_facts
        if self.server.require_public:
            self.needs |= {"epsilon"}
        self.step = step_of(self.server_step, config)
        # A guard takes out only moves that the round put in.
        is_linear = self.step.is_linear and declared.is_final
        self.guard = make_guard(config, sums=declared.is_weighted_sum, linear_step=is_linear)
        self.welcomes = self.guard.welcome(declared.optional_facts - self.needs, self.needs)
        self.roster = Roster(config, self.needs, self.welcomes)
        self.sampler = Sampler(config)
        if weighting:
            self._weighting.sampler = self.sampler  # one set of public sites for both
        self.state: State = self.initial_state()
        self.step_state = self.step.initial_state()
        self.reported = ReportedModel(config.server, config.terms.rounds)
        self.report = RoundReport(0, [], 0)
        self.tested = SiteMeasures()
        self.streams = ReleaseStreams.fresh()
        self._record = ModelRecord(self.simulation.seed)
        self._head: Head | None = None
        self.messages = RoundMessages(
            self.roster,
            self._record,
            self.server,
            self.needs | self.welcomes,
            several_models=self.several_models,
        )

    def declare(self) -> Declaration:
        """Return required facts and properties of the updates, under ``terms``."""
        return Declaration()

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Return the terms with open values filled in; stated ones stay, 0 too.

        Called before any site is asked, so that impossible terms are refused up front.
        """
        if weighting := weighting_of(cls):
            terms = weighting.complete_terms(terms)
        return terms.updated(
            work=work_of(cls.work, terms.work, cls.name),
            second=terms.second or cls.second,
            choice=terms.choice or cls.choice,
            after=terms.after.over(cls.after),
        )

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms to send, given disclosed facts; once, before round 1."""
        return self._weighting.propose(terms, disclosed) if weighting_of(type(self)) else terms

    def initial_state(self, disclosed: Disclosed | None = None) -> State:
        """Return the state before the first round.

        Args:
            disclosed: facts of the sites that take part; None before they are known.
        """
        del disclosed
        return Stateless()

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
            state: after the last round; not changed.
            updates: those that passed the checks, at least one row; not changed.
            noise: the server's own source, for strategies that add noise centrally.
        """

    def after_step(self, state: State, moved: Outcome) -> State:
        """Return the state after the server's step.

        Args:
            state: as ``combine`` returned it; not changed.
            moved: the model's move; its gauges have ``server_rate``, where that is not 1, and
                ``past_scale``, where a revision also changed how long earlier moves are.
        """
        del moved
        return state

    def privacy(self) -> dict[str, Any]:
        """Return the run's promise to its sites, for the journal."""
        return describe(self.terms)

    # --- Flower's Strategy -------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a round."""
        del config  # the terms hold everything
        self.prepare(grid)
        self.roster.refresh(grid, self.report.rejected)
        # Before the draw: sites that declined for good are not asked again.
        self.sampler.note_declined(self.report.declined)
        sites = tuple(self.roster.eligible())
        start = RoundStart(server_round, arrays, sites, tuple(self.report.answered))
        plan = self.begin_round(self.state, start)
        self.state, self.terms = plan.state, plan.terms
        asked = self._draw(server_round, plan.refused)
        quorum = max(self.server.quorum or math.ceil(2 * len(asked) / 3), 1)
        if self.terms.noise == "server":
            quorum = 0  # a round left out for want of replies would show the participants
        refused = {s: Rejected(Rejection.NOT_ASKED, why) for s, why in plan.refused.items()}
        self.report = RoundReport(server_round, asked, quorum, rejected=refused)
        self._record.begin_round(arrays, packed=self._is_packed)
        self._head = self._record.head(self.terms)
        messages = self._address(wire.TRAIN, server_round, arrays, asked)
        self.report.bytes_down = self.messages.bytes_down
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model; None without a quorum, see ``report``."""
        report = self.report
        updates = self._screen(self.messages.accept(replies, report, self.terms, self._head))
        if self.terms.noise != "server" and updates.squares is not None:
            report.norms = np.sqrt(updates.squares).tolist()
        if self.terms.noise_multiplier and not self.server.quorum:
            # A declining site has used up its budget, and is no longer asked.
            report.quorum = max(1, math.ceil(2 * (len(report.asked) - len(report.declined)) / 3))
        if len(updates.sites) < report.quorum:
            log.warning(
                "round %d: %d of the %d updates needed; the model stays as it was",
                server_round,
                len(updates.sites),
                report.quorum,
            )
            return None, None
        self.state, outcome = self.combine(self.state, updates, self.streams.noise)
        check_outcome(outcome, updates)
        # Checked before and after: the guard needs convex weights, and changes them.
        rate = self.step.rate(report.server_round)
        outcome = self.guard.reweigh(outcome, updates, rate)
        check_outcome(outcome, updates)
        self.step_state, moved = self.step.move(self.step_state, outcome, updates)
        if moved is not outcome:
            check_outcome(moved, updates)
        self.state = self.after_step(self.state, moved)
        record = self._record.moved(moved, self.terms)
        report.outcome = self.reported.take_in(report.server_round, record, moved)
        revised = moved.revision  # then the guard takes nothing back
        report.taken_back = dict(revised.taken_back if revised else self.guard.taken_back)
        return record, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a test at the sites, if any."""
        del config, grid
        if self.terms.evaluation != "sites":
            return []
        return self._address(wire.EVALUATE, server_round, arrays, self.roster.joined())

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the plain mean of disclosed metrics, see ``site_metrics.py``.

        ``tested`` says which sites are counted, and why others are not.
        """
        metrics: dict[str, dict[str, float]] = {}
        missing = dict.fromkeys(self.roster.joined(), NO_REPLY.words)
        for site, reply in self.messages.match(replies):
            try:
                metrics[site] = read_test(reply)
                del missing[site]
            except wire.WireError as error:
                missing[site] = str(error)
                if not reply.has_error():  # sites that disclose nothing decline each time
                    log.warning("round %d: site %s: %s", server_round, site, error)
        self.tested = measured_at_sites(metrics, missing, self.roster.disclosed)
        return MetricRecord({**self.tested.metrics}) if self.tested.metrics else None

    def summary(self) -> None:
        """Log the strategy, its rounds and required facts."""
        needs = ", ".join(sorted(self.needs)) or "nothing"
        log.info("strategy %s, %d rounds; sites disclose: %s", self.name, self.terms.rounds, needs)

    def finish_messages(
        self, arrays: ArrayRecord, grid: Grid, kind: str = wire.FINISH
    ) -> Iterable[Message]:
        """Return messages of ``kind`` with the final model, for joined sites."""
        self.roster.refresh(grid)
        last, nodes = self.report.server_round or self.terms.rounds, self.roster.joined()
        return self._address(kind, last, arrays, nodes)

    def prepare(self, grid: Grid) -> None:
        """Wait for the sites, ask for facts, settle the terms; before round 1."""
        if self.prepared:
            return
        self.roster.gather(grid)
        for s in self.roster.left_out():
            log.warning("site %s is left out: %s", s, self.roster.why_left_out(s))
        self.roster.check_anybody(self.name)
        disclosed = {site: self.roster.disclosed.get(site, {}) for site in self.roster.eligible()}
        if not self.settled:  # else terms and state are those that the run began with
            self.settle(disclosed if self.needs else {})
        self.prepared = True

    def settle(self, disclosed: Disclosed) -> None:
        """Set the run's first terms and state, by disclosed facts."""
        self.terms = self.propose(self.terms, disclosed)
        self.state, self.settled = self.initial_state(disclosed), True

    # --- parts of a round ---------------------------------------------------------------------

    @property
    def _is_packed(self) -> bool:
        """Whether the record holds several models, by number."""
        return self.several_models and self.state.models > 0

    def _draw(self, server_round: int, refused: Mapping[str, str]) -> list[str]:
        """Return the sites of a round in order, without ``refused``.

        With ``noise = server`` each by a secret toss of its own, which the account rests on.
        """
        sites = self.roster.eligible()
        if self.terms.noise == "server":
            sites = [site for site in sites if site not in refused]
            # Independent secret tosses: the Poisson sampling by which the account is amplified.
            chosen = self.streams.sampling.bernoulli(len(sites), self.server.fraction)
            return [sites[i] for i in chosen]
        epsilons = {s: self.roster.disclosed.get(s, {}).get("epsilon", 0.0) for s in sites}
        drawn = self.sampler.draw(server_round, sites, epsilons)
        return [site for site in drawn if site not in refused]

    def _address(
        self, kind: str, server_round: int, arrays: ArrayRecord, sites: list[str]
    ) -> Iterable[Message]:
        """Return the messages of ``kind`` to the sites."""
        self._record.open(arrays, packed=self._is_packed)
        requests = {site: self.request(self.state, server_round, site, kind) for site in sites}
        return self.messages.address(kind, server_round, self.terms, requests)

    def _screen(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the updates that the guard lets through."""
        report, accepted = self.report, self.guard.screen(updates, self._record.template)
        for site, reason in self.guard.refused.items():
            log.warning("round %d: site %s: %s", report.server_round, site, reason)
        report.rejected.update(
            {s: Rejected(Rejection.GUARD, why) for s, why in self.guard.refused.items()}
        )
        report.accepted = list(accepted.sites)
        return accepted


def models_by_site(
    strategy: HDPStrategy, arrays: Arrays
) -> tuple[tuple[Arrays, ...], dict[str, int]]:
    """Return the models in ``arrays`` and the number of each site's."""
    if not (strategy.several_models and strategy.state.models):
        return (arrays,), {}
    last = strategy.report.server_round
    return tuple(wire.split_models(arrays)), {
        site: strategy.request(strategy.state, last, site, wire.EVALUATE).model
        for site in strategy.roster.nodes
    }


def parts_of(strategy: type[HDPStrategy]) -> tuple[type[HDPStrategy] | type[ServerStep], ...]:
    """Return the classes with settings: the strategy, its weighting, its server step."""
    weighting = weighting_of(strategy)
    step = (strategy.server_step,) if strategy.server_step.name else ()
    return (strategy, *(parts_of(weighting) if weighting else ()), *step)


def weighting_of(strategy: type[HDPStrategy]) -> type[HDPStrategy] | None:
    """Return the strategy that weighs, for one that acts around its weights."""
    return getattr(strategy, "weighting", None)
