"""Kernel of a run: the federated rounds of one strategy.

The kernel is Flower's ``Strategy``: any ServerApp can run it with Flower's own ``start``; ours runs
it with ``server_app/run/rounds.py``. It holds a strategy (``base.py``), which combines updates, and
has all else: sites, messages, checks of replies and outcomes, guard, server step. Only
``round_messages.py``, ``roster.py``, ``exchange.py`` and ``model_record.py`` read a Message.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.site_summary import SiteMeasures
from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.releases import KINDS
from hdpfl_flower.releases.feasibility import rules_of
from hdpfl_flower.updates import RoundUpdates
from strategies.core.base import HDPStrategy
from strategies.core.checks import NO_REPLY, check_outcome, is_declared_sum, read_test
from strategies.core.declaration import check_keys, check_needs
from strategies.core.interface import Disclosed, RoundStart, State
from strategies.core.model_record import ModelRecord
from strategies.core.roster import Roster
from strategies.core.round_messages import RoundMessages, RoundReport, TogetherRounds
from strategies.core.site_metrics import measured_at_sites
from strategies.guards.registry import GUARDS
from strategies.server_step.found import step_type
from strategies.server_step.reported_model import ReportedModel
from strategies.server_step.step import ServerStep

log = logging.getLogger("hdpfl.server")
FIRST = frozenset(name for name, kind in KINDS.items() if kind.table == "first")
"""Kinds that are asked for before round 1."""


class Kernel(Strategy):
    """Federated rounds of one strategy, without a trusted party.

    Attributes:
        strategy: combines the updates.
        server: the keys that the server alone reads.
        needs: facts that each site must disclose to take part, see ``wire.SITE_KEYS``.
        welcomes: facts that the strategy uses where sites disclose them, and can do without.
        state: of the strategy, after the last round.
        step: moves the model by the aggregate.
        step_state: that of the server's step.
        reported: which model the run reports.
        messages: to the sites, and their replies.
        prepared: whether this process has waited for the sites.
        settled: the terms are final, also after a resume.

    Guarantees:
        Whatever the replies hold, a round ends with a finite model of the same names and shapes,
        or with the model it began with; a bad reply is dropped and recorded.
    """

    def __init__(self, strategy: HDPStrategy, step: type[ServerStep] = ServerStep) -> None:
        """Prepare for the run of ``strategy``.

        Raises:
            TermsError: the server step, the guard or a key needs a property that the strategy does
                not offer.
        """
        self.strategy, config, declared = strategy, strategy.config, strategy.declare()
        declared = replace(declared, single_updates=not config.terms.source.is_summed)
        self.server, self.sampler, name = config.server, strategy.sampler, config.terms.strategy
        check_keys(config, declared)
        step, guard = step_type(step, config), GUARDS[config.server.guard]
        check_needs(f"the server step '{step.name}'", step.needs, declared, name)
        check_needs(f"'guard' = '{config.server.guard}'", guard.needs, declared, name)
        self.prepared = self.settled = False
        self.needs = declared.required_facts
        if self.server.require_public:
            self.needs |= {"epsilon"}
        self.step = step(config)
        # A guard takes out only moves that the round put in.
        is_linear = self.step.is_linear and declared.is_final
        self.guard = guard(config, sums=declared.is_weighted_sum, linear_step=is_linear)
        self.welcomes = self.guard.welcome(declared.optional_facts - self.needs, self.needs)
        self.roster = Roster(config, self.needs, self.welcomes)
        half = config.terms.source.half("strategies.core.{}")
        self.together: TogetherRounds | None = half.Rounds(config.terms) if half else None
        self.state: State = strategy.initial_state()
        self.step_state = self.step.initial_state()
        self.reported = ReportedModel(config.server, config.terms.rounds)
        self.report = RoundReport(0, [], 0)
        self.tested = SiteMeasures()
        self.streams = ReleaseStreams.fresh()
        self._record = ModelRecord(config.simulation.seed)
        self._head: Head | None = None
        self._one_model = declared.one_model
        # 'module:Class': the contract's tests hold the sums of all others.
        self._is_external_sum = ":" in name and declared.is_weighted_sum
        self.messages = RoundMessages(
            self.roster,
            self._record,
            self.server,
            self.needs | self.welcomes,
            several_models=not declared.one_model,
        )

    @property
    def terms(self) -> RunTerms:
        """The run's terms, as the sites get them in this round."""
        return self.strategy.terms

    # --- Flower's Strategy -------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a round."""
        del config  # the terms hold everything
        strategy = self.strategy
        self.prepare(grid)
        self.roster.refresh(grid, self.report.rejected)
        # Before the draw: sites that declined for good are not asked again.
        self.sampler.note_declined(self.report.declined)
        sites = tuple(self.roster.eligible())
        answered = tuple(self.report.answered)
        start = RoundStart(server_round, arrays, sites, answered, self.roster.disclosed)
        plan = strategy.begin_round(self.state, start)
        self.state, strategy.terms = plan.state, plan.terms
        asked = self._draw(server_round, plan.refused)
        if self.together and not self.sampler.used_up:
            self.together.terms = self.terms
            self.together.declined |= self.roster.declined
            asked = self.together.choose(server_round, asked, len(self.roster.nodes))
        strategy.asked = tuple(asked)
        quorum = max(self.server.quorum or math.ceil(2 * len(asked) / 3), 1)
        if self.together:
            quorum = len(asked)
        if not self.terms.source.site_plans:
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
        if self.together:
            pairs = self.messages.match(replies)
            updates = self.together.accept(pairs, report, self.messages.size, self._head)
        else:
            updates = self.messages.accept(replies, report, self.terms, self._head)
        updates = self._screen(updates)
        if self.terms.source.site_plans and not self.together and updates.squares is not None:
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
        self.state, outcome = self.strategy.combine(self.state, updates, self.streams.noise)
        check_outcome(outcome, updates)
        if self._is_external_sum and not is_declared_sum(outcome, updates):
            raise StrategyError(
                f"'{self.terms.strategy}' declares that its update is a weighted sum of the "
                f"updates, but its update of round {updates.server_round} is not; declare "
                "is_weighted_sum=False"
            )
        # Checked before and after: the guard needs convex weights, and changes them.
        rate = self.step.rate(updates.server_round)
        outcome = self.guard.reweigh(outcome, updates, rate)
        check_outcome(outcome, updates)
        self.step_state, moved = self.step.move(self.step_state, outcome, updates)
        if moved is not outcome:
            check_outcome(moved, updates)
        self.state = self.strategy.after_step(self.state, moved)
        record = self._record.moved(moved, self.terms)
        report.outcome = self.reported.take_in(updates.server_round, record, moved)
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
        name = self.terms.strategy
        log.info("strategy %s, %d rounds; sites disclose: %s", name, self.terms.rounds, needs)

    def first_messages(self, arrays: ArrayRecord, kind: str) -> Iterable[Message]:
        """Return messages that ask all sites for a kind of release before round 1."""
        sites = self.roster.eligible()
        if self.together:
            self.together.terms = self.terms
            sites = self.together.choose(1, sites, len(self.roster.nodes))
        return self._address(server_wire.query_of(kind), 1, arrays, sites)

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
        self.roster.check_anybody(self.terms.strategy)
        disclosed = {site: self.roster.disclosed.get(site, {}) for site in self.roster.eligible()}
        if not self.settled:  # else terms and state are those that the run began with
            self.settle(disclosed)
        self.prepared = True

    def settle(self, disclosed: Disclosed) -> None:
        """Set the run's first terms and state, by disclosed facts."""
        strategy = self.strategy
        strategy.terms = strategy.propose(strategy.terms, disclosed)
        if rules := rules_of(strategy.terms):
            strategy.terms = rules.settled(strategy.terms, len(disclosed))
        self.state, self.settled = strategy.initial_state(disclosed), True

    def privacy(self) -> dict[str, Any]:
        """Return the run's promise to its sites, for the journal."""
        return self.strategy.privacy(self.state)

    # --- parts of a round ---------------------------------------------------------------------

    @property
    def _is_packed(self) -> bool:
        """Whether the record holds several models, by number."""
        return not self._one_model and self.state.models > 0

    def _draw(self, server_round: int, refused: Mapping[str, str]) -> list[str]:
        """Return the sites of a round in order, without ``refused``.

        With ``noise = server`` each by a secret toss of its own, which the account rests on.
        """
        sites = self.roster.eligible()
        if not self.terms.source.site_plans:
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
        state, ask = self.state, self.strategy.request
        requests = {site: ask(state, server_round, site, kind) for site in sites}
        if self.together and (kind == wire.TRAIN or wire.kind_asked(kind) in FIRST):
            text = self.together.text_of(sites)
            requests = {s: replace(request, of_noise=text) for s, request in requests.items()}
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

    def models_by_site(self, arrays: Arrays) -> tuple[tuple[Arrays, ...], dict[str, int]]:
        """Return the models in ``arrays`` and the number of each site's."""
        if not self._is_packed:
            return (arrays,), {}
        state, last = self.state, self.report.server_round
        return tuple(wire.split_models(arrays)), {
            site: self.strategy.request(state, last, site, wire.EVALUATE).model
            for site in self.roster.nodes
        }
