"""Base class of all strategies: samples sites, exchanges messages, validates and records replies.

A strategy subclasses :class:`HDPStrategy`, declares what it needs and writes ``combine``. Any
ServerApp can run it with Flower's own ``start``; ours runs it with ``server_app/run/rounds.py``.
Beside ``roster.py``, ``exchange.py`` and ``model_record.py`` no server file reads a Message.

The hooks, in the order of a run; only ``combine`` must be written:

==================  ===============================================================================
``declare``         facts that sites must or may disclose; linear or not, convex or not
``complete_terms``  values for terms that are left to the strategy; refusal of terms that cannot be
``propose``         the terms to send, given what the sites disclosed
``initial_state``   the state before round 1, a frozen dataclass
``begin_round``     the state, terms and refused sites of a round
``request``         which model a site is sent, and what is asked of it
``combine``         the next state and the step of the model
``privacy``         the promise of the run, for the journal
==================  ===============================================================================
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.settings import NoSettings, Settings
from hdpfl_flower.config.simulation_terms import SimulationTerms
from hdpfl_flower.config.terms import AUTO, RunTerms
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.update_matrix import GIVEN_BACK, give_back_freed_memory, update_matrix
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.site_summary import Measured
from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.checks import (
    NO_REPLY,
    check_norm,
    check_outcome,
    read_checked,
    read_test,
    rejection_of,
)
from strategies.core.exchange import Exchange
from strategies.core.guard import Guard
from strategies.core.interface import (
    Declaration,
    Disclosed,
    RoundPlan,
    RoundStart,
    SiteRequest,
    State,
    Stateless,
)
from strategies.core.model_record import ModelRecord
from strategies.core.privacy_statement import describe
from strategies.core.reported_model import ReportedModel
from strategies.core.roster import Roster
from strategies.core.round_report import RoundReport
from strategies.core.sampler import Sampler
from strategies.core.site_metrics import measured_at_sites
from strategies.server_step.found import step_of
from strategies.server_step.step import ServerStep

log = logging.getLogger("hdpfl.server")

__all__ = ["Declaration", "Disclosed", "HDPStrategy", "State", "Stateless"]


class HDPStrategy(Strategy):
    """A federated round in which every site has its own noise and nobody is trusted.

    Attributes:
        name: as users write it in ``strategy``.
        several_models: there is a model a group of sites; the state has ``models``, their number, 0
            before the end of round 1.
        chooses: sites choose among the models, and their plans pay for it.
        constant_weights: it weighs by what sites disclose alone, the same in every round.
        server_step: how the model moves by the aggregate; what follows a ``+`` replaces it.
        settings_type: the class of its settings, in the strategy's own file.
        table: the name before the dot of a setting's key; empty: ``name``.
        settings: the strategy's own, of the run.
        terms: the run's, as the sites get them.
        server: the keys that the server alone reads.
        simulation: what a simulation draws its sites from.
        needs: facts that each site must disclose to take part, see ``wire.SITE_KEYS``.
        welcomes: facts that the strategy uses where sites disclose them, and can do without.
        state: after the last round.
        step_state: that of the server's step.
        reported: which model the run reports.
        prepared: whether this process has waited for the sites.
        settled: whether the terms are those of the whole run, whichever process settled them.

    Guarantees:
        Whatever the replies hold, a round ends with a finite model of the same names and shapes,
        or with the model it began with; a bad reply is dropped and recorded.
    """

    name: ClassVar[str]
    several_models: ClassVar[bool] = False
    chooses: ClassVar[bool] = False
    constant_weights: ClassVar[bool] = False
    server_step: ClassVar[type[ServerStep]] = ServerStep
    settings_type: ClassVar[type[Settings]] = NoSettings
    table: ClassVar[str] = ""
    settings: Settings
    terms: RunTerms
    server: ServerTerms
    simulation: SimulationTerms
    prepared = settled = False

    def __init__(self, config: RunConfig) -> None:
        """Prepare for the run of ``config``."""
        config = replace(config, terms=self.complete_terms(config.terms))
        self.terms = config.terms
        self.server, self.simulation = config.server, config.simulation
        table = self.settings_table()
        self.settings = self.settings_type.parse(config.settings.get(table, {}), f"{table}.")
        declared = self.declare()
        self.needs = declared.required_facts
        if self.server.require_public:
            self.needs |= {"epsilon"}
        self.step = step_of(self.server_step, config)
        self.guard = Guard(config, sums=declared.is_weighted_sum, linear_step=self.step.is_linear)
        self.welcomes = self.guard.welcome(declared.optional_facts - self.needs, self.needs)
        self.roster = Roster(config, self.needs, self.welcomes)
        self.sampler = Sampler(config)
        self.state: State = self.initial_state()
        self.step_state = self.step.initial_state()
        self.reported = ReportedModel(config.server, config.terms.rounds)
        self.report = RoundReport(0, [], 0)
        self.tested = Measured()
        self.streams = ReleaseStreams.fresh()
        self._record = ModelRecord(self.simulation.seed)
        self._head: Head | None = None
        self._requests: dict[str, SiteRequest] = {}
        self._exchange: Exchange | None = None

    # --- its settings -------------------------------------------------------------------------

    @classmethod
    def parts(cls) -> tuple[type[HDPStrategy] | type[ServerStep], ...]:
        """Return what has settings that count: this one, the one that weighs for it, the step."""
        weighting: type[HDPStrategy] | None = getattr(cls, "weighting", None)
        step = (cls.server_step,) if cls.server_step.name else ()
        return (cls, *(weighting.parts() if weighting else ()), *step)

    @classmethod
    def settings_table(cls) -> str:
        """Return the name before the dot of its settings' keys."""
        return cls.table or cls.name

    # --- the hooks ----------------------------------------------------------------------------

    def declare(self) -> Declaration:
        """Return what the strategy needs and what its updates are, under ``terms``."""
        return Declaration()

    @classmethod
    def complete_terms(cls, terms: RunTerms) -> RunTerms:
        """Return the terms with what they leave to the strategy; what they state stays, 0 too.

        Known before any site is asked, so that what no site can follow is refused up front.
        """
        left = {
            "prox_lambda": (terms.prox_lambda == AUTO, 0.0),
            "personal_noise": (terms.personal_noise == AUTO, "none"),
            "personal_training": (terms.personal_training == AUTO, "joint"),
            "tuning_part": (terms.tuning_part == AUTO, "head"),
        }
        found = {name: value for name, (is_open, value) in left.items() if is_open}
        return terms.updated(**found) if found else terms

    @classmethod
    def as_weighting(cls) -> type[HDPStrategy]:
        """Return the class that weighs inside a ``+`` part: one weight for each client."""
        return cls

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms to send, given what the sites disclosed; called once, before round 1."""
        del disclosed
        return terms

    def initial_state(self, disclosed: Disclosed | None = None) -> State:
        """Return the state before the first round.

        Args:
            disclosed: facts of the sites that take part; None before they are known.
        """
        del disclosed
        return Stateless()

    def begin_round(self, state: State, start: RoundStart) -> RoundPlan:
        """Return the state, the terms and the refused sites of a round; not its sample."""
        del start
        return RoundPlan(state, self.terms)

    def request(
        self, state: State, server_round: int, site: str, kind: str = wire.TRAIN
    ) -> SiteRequest:
        """Return what to send ``site``, to train, to test (``kind``), or at the end of the run."""
        del state, server_round, site, kind
        return SiteRequest()

    @abstractmethod
    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """Return the next state and what to add to the model.

        Args:
            state: after the last round; not changed.
            updates: what passed the checks, at least one row; not changed.
            noise: the server's own source, for strategies that add noise centrally.
        """

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
        # Before the draw: who declined the last round for good is not asked again.
        self.sampler.note_declined(self.report.declined)
        sites = tuple(self.roster.eligible())
        start = RoundStart(server_round, arrays, sites, tuple(self.report.answered))
        plan = self.begin_round(self.state, start)
        self.state, self.terms = plan.state, plan.terms
        asked = self._draw(server_round, plan.refused)
        quorum = max(self.server.quorum or math.ceil(2 * len(asked) / 3), 1)
        if self.terms.noise == "server":
            quorum = 0  # a round left out for want of replies would show who took part
        refused = {s: Rejected(Rejection.NOT_ASKED, why) for s, why in plan.refused.items()}
        self.report = RoundReport(server_round, asked, quorum, rejected=refused)
        self._record.begin_round(arrays, packed=self._is_packed)
        self._head = self._record.head(self.terms)
        return self._address(wire.TRAIN, server_round, arrays, asked)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model, or None without a quorum; ``report`` holds the reasons."""
        report = self.report
        updates = self._screen(self._accept(replies))
        if self.terms.noise != "server" and updates.squares is not None:
            report.norms = np.sqrt(updates.squares).tolist()
        if self.terms.noise_multiplier and not self.server.quorum:
            # Who declines has left with its budget used up, and is no longer one of those asked.
            report.quorum = max(1, math.ceil(2 * (len(report.asked) - len(report.declined)) / 3))
        if len(updates.sites) < report.quorum:
            log.warning(
                "round %d: %d of the %d updates needed; the model stays as it was",
                server_round, len(updates.sites), report.quorum,
            )  # fmt: skip
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
        record = self._record.moved(moved, self.terms)
        report.outcome = self.reported.take_in(report.server_round, record, moved)
        return record, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a test at the sites, where the terms ask for one."""
        del config, grid
        if self.terms.evaluation != "sites":
            return []
        return self._address(wire.EVALUATE, server_round, arrays, self.roster.joined())

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the plain mean over the sites that disclose metrics, see ``site_metrics.py``.

        ``tested`` says which sites are counted, and why others are not.
        """
        found: dict[str, dict[str, float]] = {}
        missing = dict.fromkeys(self.roster.joined(), NO_REPLY.words)
        for site, reply in self.match(replies):
            try:
                found[site] = read_test(reply)
                del missing[site]
            except wire.WireError as error:
                missing[site] = str(error)
                if not reply.has_error():  # sites that disclose nothing decline each time
                    log.warning("round %d: site %s: %s", server_round, site, error)
        self.tested = measured_at_sites(found, missing, self.roster.disclosed)
        return MetricRecord({**self.tested.metrics}) if self.tested.metrics else None

    def summary(self) -> None:
        """Log what will run."""
        needs = ", ".join(sorted(self.needs)) or "nothing"
        log.info("strategy %s, %d rounds; sites disclose: %s", self.name, self.terms.rounds, needs)

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The sites online that take no part, each with the needed facts it does not disclose."""
        return self.roster.left_out()

    @property
    def used_up(self) -> str:
        """Why the run is at its end before its last round; empty while it is not."""
        return self.sampler.used_up

    def finish_messages(
        self, arrays: ArrayRecord, grid: Grid, kind: str = wire.FINISH
    ) -> Iterable[Message]:
        """Return the messages, of ``kind``, with the final model for every site that joined."""
        self.roster.refresh(grid)
        last, nodes = self.report.server_round or self.terms.rounds, self.roster.joined()
        return self._address(kind, last, arrays, nodes)

    def prepare(self, grid: Grid) -> None:
        """Wait for the sites, learn what they disclose and settle the terms; before round 1."""
        if self.prepared:
            return
        self.roster.gather(grid)
        for s in self.left_out:
            log.warning("site %s is left out: %s", s, self.roster.why_left_out(s))
        self.roster.check_anybody(self.name)
        disclosed = {site: self.roster.disclosed.get(site, {}) for site in self.roster.eligible()}
        if not self.settled:  # else terms and state are those that the run began with
            self.settle(disclosed if self.needs else {})
        self.prepared = True

    def settle(self, disclosed: Disclosed) -> None:
        """Set the terms and the state that the run begins with, by what the sites disclosed."""
        self.terms = self.propose(self.terms, disclosed)
        self.state, self.settled = self.initial_state(disclosed), True

    def models_by_site(self, arrays: Arrays) -> tuple[tuple[Arrays, ...], dict[str, int]]:
        """Return the models in ``arrays`` and which one each site uses; no site: all the first."""
        if not self._is_packed:
            return (arrays,), {}
        return tuple(wire.split_models(arrays)), {
            site: self.request(self.state, self.report.server_round, site, wire.EVALUATE).model
            for site in self.roster.nodes
        }

    @property
    def _is_packed(self) -> bool:
        """Whether the record holds several models, by number."""
        return self.several_models and self.state.models > 0

    def _draw(self, server_round: int, refused: Mapping[str, str]) -> list[str]:
        """Return the sites of a round, in order, without the ``refused``.

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
        self._record.open(arrays, packed=self._is_packed)
        requests = {site: self.request(self.state, server_round, site, kind) for site in sites}
        # One content for all sites of the same request: models are encoded once.
        contents = {
            request: self._record.message(self.terms, server_round, request, kind)
            for request in sorted(set(requests.values()), key=str)
        }
        if kind == wire.TRAIN:
            self._requests = requests
            sizes = {request: wire.content_bytes(content) for request, content in contents.items()}
            self.report.bytes_down = sum(sizes[request] for request in requests.values())
        nodes = {site: self.roster.nodes[site] for site in sites}
        self._exchange = Exchange(
            {site: contents[request] for site, request in requests.items()},
            kind, nodes, server_round, self.server.round_timeout,
        )  # fmt: skip
        return self._exchange.messages

    def match(self, replies: Iterable[Message]) -> Iterable[tuple[str, Message]]:
        """Yield (site, reply) of the last messages, the first reply of each site alone."""
        return self._exchange.match(replies) if self._exchange else ()

    def _accept(self, replies: Iterable[Message]) -> RoundUpdates:
        """Return the updates that pass every check, in the sites' order.

        ``report`` names their sites, and the reasons against the others.
        """
        report, size = self.report, self._record.size
        asked, rejected = report.asked, report.rejected
        # Everybody counts as without a reply until one passes every check.
        rejected.update(dict.fromkeys(asked, NO_REPLY))
        rows = update_matrix(len(asked), size, runs_dir(self.server.runs_dir) / self.terms.run_id)
        squares, models = np.zeros(len(asked)), np.zeros(len(asked), np.int64)
        projected = np.zeros(len(asked), np.bool_)
        for site, reply in self.match(replies):
            try:
                if reply.has_content():
                    report.bytes_up += wire.content_bytes(reply.content)
                row = asked.index(site)
                rows[row], models[row], projected[row] = self._read(site, reply, size)
                # Of the row as the strategy receives it, a projected one after it was lifted.
                squares[row] = check_norm(rows[row])
                report.answered.append(site)
                del rejected[site]
            except wire.WireError as error:
                rejected[site] = rejection_of(error)
            del reply  # its row is a copy
            if 4 * size >= GIVEN_BACK:
                give_back_freed_memory()
        for site, reason in rejected.items():
            log.warning("round %d: site %s: %s", report.server_round, site, reason.words)
        report.accepted = [site for site in asked if site not in rejected]
        stay = [asked.index(site) for site in report.accepted]
        # Rows move up only, so that none is overwritten before it is read.
        for row, former in enumerate(stay):
            if row != former:
                rows[row] = rows[former]
        requests = [self._requests[site] for site in report.accepted]
        several, chose = self.several_models, [one.use == wire.CHOOSE for one in requests]
        return RoundUpdates(
            report.server_round,
            tuple(report.accepted),
            rows[: len(stay)],
            {fact: self._column(fact) for fact in sorted(self.needs | self.welcomes)},
            self._head,
            group=models[stay] if several else None,
            chose=np.array(chose, dtype=np.bool_) if several else None,
            squares=squares[stay],
            projected=projected[stay] if any(one.along for one in requests) else None,
            tensor_sizes=tuple(array.size for array in self._record.template.values()),
        )

    def _read(
        self, site: str, reply: Message, size: int
    ) -> tuple[npt.NDArray[np.float32], int, bool]:
        """Return a reply's row, the model that it is an update of, and whether it was one number.

        Raises:
            wire.WireError: the site sent a code instead, or something that cannot be used.
        """
        request, models = self._requests[site], len(self._record.models)
        chooses = request.use == wire.CHOOSE and models > 1
        update = read_checked(
            reply, size, may_be_projected=request.along is not None, with_choice=chooses,
            form=self.terms.upload,
        )  # fmt: skip
        model = wire.read_choice(reply.content, models) if chooses else request.model
        if request.along is None or size == 1:
            return update, model, False
        check_norm(update)  # before the projection: what is multiplied is bounded
        is_number = len(update) == 1
        # A site that lost its model sends the whole: the number that it would have sent, to the bit
        number = float(update[0]) if is_number else float(request.along.project(update)[0])
        return request.along.lift(number), model, is_number

    def _screen(self, updates: RoundUpdates) -> RoundUpdates:
        """Return the updates that the guard lets through; ``report`` says who is refused."""
        report, kept = self.report, self.guard.screen(updates, self._record.template)
        for site, reason in self.guard.refused.items():
            log.warning("round %d: site %s: %s", report.server_round, site, reason)
        report.rejected.update(
            {s: Rejected(Rejection.GUARD, why) for s, why in self.guard.refused.items()}
        )
        report.accepted = list(kept.sites)
        return kept

    def _column(self, fact: str) -> npt.NDArray[np.float64]:
        disclosed = self.roster.disclosed
        return np.array([disclosed[site].get(fact, np.nan) for site in self.report.accepted])
