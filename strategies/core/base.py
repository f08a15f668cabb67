"""The round, owned once: who is asked, what is checked, what is counted. A rule is the mathematics.

With ``roster.py`` and ``exchange.py`` the only server files that look into a Message. A rule
subclasses :class:`HDPStrategy`, names what it needs disclosed and writes ``combine``; any ServerApp
can run it with Flower's own ``start``, ours runs it with ``server_app/run/rounds.py``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.estimators.softmax_head import Head, head_of
from hdpfl_flower.linalg.update_matrix import GIVEN_BACK, give_back_freed_memory, update_matrix
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.site_summary import Measured
from hdpfl_flower.updates import RoundUpdates
from strategies.core.checks import NO_REPLY, check_norm, check_outcome, read_test
from strategies.core.exchange import Exchange
from strategies.core.guard import Guard
from strategies.core.strategy_state import Keeps
from strategies.core.round_report import RoundReport
from strategies.core.roster import Roster
from strategies.core.rule import Disclosed, Rule, State
from strategies.core.sampler import Sampler
from strategies.core.site_metrics import measured_at_sites

log = logging.getLogger("hdpfl.server")

__all__ = ["Disclosed", "HDPStrategy", "State"]


class HDPStrategy(Keeps, Rule):
    """A federated round in which every site has its own noise and nobody is trusted.

    Attributes:
        needs: facts that each site must disclose to take part, see ``wire.SITE_KEYS``.
        welcomes: facts that the rule uses where sites disclose them, and can do without.

    Guarantees:
        Whatever the replies hold, a round ends with a finite model of the same names and shapes,
        or with the model it began with; a bad reply is dropped and recorded.
    """

    def __init__(self, terms: RunTerms) -> None:
        """Prepare for the run of ``terms``."""
        terms = self.completed(terms)
        self.terms, self.needs = terms, self.discloses(terms)
        if terms.require_public:
            self.needs |= {"epsilon"}
        self.welcomes = self.uses(terms) - self.needs
        self.roster = Roster(terms, self.needs, self.welcomes)
        self.sampler = Sampler(terms)
        self.state = self.initial_state()
        self.guard = Guard(terms, sums=self.is_weighted_sum(terms))
        self.report = RoundReport(0, [], 0)
        self.tested = Measured()
        self.streams = ReleaseStreams.fresh()
        self._like: Arrays = {}
        self._exchange: Exchange | None = None

    # --- Flower's Strategy -------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a round."""
        del config  # the terms hold everything
        self.prepare(grid)
        self.roster.refresh(grid)
        self.sampler.heard(self.report.declined)
        asked = self._sample(server_round)
        quorum = self.terms.quorum or math.ceil(2 * len(asked) / 3)
        self.report = RoundReport(server_round, asked, max(quorum, 1))
        self._like = self.layout(arrays)
        return self._address(wire.TRAIN, server_round, arrays, asked)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model, or None without a quorum; ``report`` says what happened."""
        report, size = self.report, sum(array.size for array in self._like.values())
        rows, squares = self._accept(replies, size)
        facts = {fact: self._column(fact) for fact in sorted(self.needs | self.welcomes)}
        sites = tuple(report.accepted)
        came = RoundUpdates(server_round, sites, rows, facts, self._head(), squares=squares)
        updates = self.grouped(self._screen(came))
        if self.terms.noise != "server" and updates.squares is not None:
            report.norms = np.sqrt(updates.squares).tolist()
        if self.terms.noise_multiplier and not self.terms.quorum:
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
        outcome = self.guard.reweigh(outcome, updates)
        check_outcome(outcome, updates)
        report.outcome = outcome
        return self.moved(outcome), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a test at the sites, where the terms ask for one."""
        del config, grid
        if self.terms.evaluation != "sites":
            return []
        return self._address(wire.EVALUATE, server_round, arrays, list(self.roster.nodes))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the plain mean over the sites that disclose metrics, see ``site_metrics.py``.

        ``tested`` says which sites are counted, and why others are not.
        """
        found: dict[str, dict[str, float]] = {}
        missing = dict.fromkeys(self.roster.nodes, NO_REPLY)
        for site, reply in self._match(replies):
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

    # --- the end of a run --------------------------------------------------------------------

    def finish_messages(self, arrays: ArrayRecord, grid: Grid) -> Iterable[Message]:
        """Return the messages that bring the final model to every site online."""
        self.roster.refresh(grid)
        return self._address(wire.FINISH, self.terms.rounds, arrays, list(self.roster.nodes))

    # --- parts -------------------------------------------------------------------------------

    def prepare(self, grid: Grid) -> None:
        """Wait for the sites, learn what they disclose and settle the terms; before round 1."""
        if self.prepared:
            return
        self.roster.gather(grid)
        for site in self.left_out:
            log.warning("site %s is left out: %s", site, self.roster.why_left_out(site))
        self.roster.check_anybody(self.name)
        disclosed = {site: self.roster.disclosed.get(site, {}) for site in self.roster.eligible()}
        if not self.settled:  # else they are those that the run began with
            self.terms = self.propose(self.terms, disclosed if self.needs else {})
        self.prepared = self.settled = True

    def _sample(self, server_round: int) -> list[str]:
        """Return the sites of a round, in order, see :meth:`Sampler.draw`."""
        sites = self.roster.eligible()
        epsilons = {s: self.roster.disclosed.get(s, {}).get("epsilon", 0.0) for s in sites}
        return self.sampler.draw(server_round, sites, epsilons)

    def _address(
        self, kind: str, server_round: int, arrays: ArrayRecord, sites: list[str]
    ) -> Iterable[Message]:
        asks = {site: self.ask_of(kind, site) for site in sites}
        contents = {
            ask: self.content_of(ask, server_round, arrays)
            for ask in sorted(set(asks.values()), key=str)
        }
        if kind == wire.TRAIN:
            sizes = {ask: wire.content_bytes(content) for ask, content in contents.items()}
            self.report.bytes_down = sum(sizes[ask] for ask in asks.values())
        nodes = {site: self.roster.nodes[site] for site in sites}
        self._exchange = Exchange(
            {site: contents[ask] for site, ask in asks.items()},
            kind,
            nodes,
            server_round,
            self.terms.round_timeout,
        )
        return self._exchange.messages

    def _match(self, replies: Iterable[Message]) -> Iterable[tuple[str, Message]]:
        return self._exchange.match(replies) if self._exchange else ()

    def _accept(
        self, replies: Iterable[Message], size: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Return the updates that pass every check, in the sites' order, ``(n, size)``, and ‖u‖².

        ``report`` says whose they are, and why others are not among them.
        """
        asked, rejected = self.report.asked, self.report.rejected
        rejected.update(dict.fromkeys(asked, NO_REPLY))
        rows = update_matrix(len(asked), size, runs_dir(self.terms.runs_dir) / self.terms.run_id)
        squares = np.zeros(len(asked))
        for site, reply in self._match(replies):
            try:
                if reply.has_content():
                    self.report.bytes_up += wire.content_bytes(reply.content)
                row = asked.index(site)
                rows[row] = self.read_row(site, reply, size)
                squares[row] = check_norm(rows[row])
                del rejected[site]
            except wire.WireError as error:
                rejected[site] = str(error)
            del reply  # its row is a copy
            if 4 * size >= GIVEN_BACK:
                give_back_freed_memory()
        for site, reason in rejected.items():
            log.warning("round %d: site %s: %s", self.report.server_round, site, reason)
        self.report.accepted = [site for site in asked if site not in rejected]
        stay = [asked.index(site) for site in self.report.accepted]
        for row, former in enumerate(stay):
            if row != former:
                rows[row] = rows[former]
        return rows[: len(stay)], squares[stay]

    def _screen(self, came: RoundUpdates) -> RoundUpdates:
        """Return the updates that the guard lets through; ``report`` says who is refused."""
        report, kept = self.report, self.guard.screen(came)
        for site, reason in self.guard.refused.items():
            log.warning("round %d: site %s: %s", report.server_round, site, reason)
        report.rejected.update(self.guard.refused)
        report.accepted = list(kept.sites)
        return kept

    def _column(self, fact: str) -> npt.NDArray[np.float64]:
        disclosed = self.roster.disclosed
        return np.array([disclosed[site].get(fact, np.nan) for site in self.report.accepted])

    def _head(self) -> Head | None:
        shapes = {name: array.shape for name, array in self._like.items()}
        return head_of(self.terms.model, task_for(self.terms), shapes)
