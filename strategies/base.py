"""The round, owned once: who is asked, what is checked, what is counted. A rule is the mathematics.

With ``roster.py`` and ``exchange.py`` the only server files that look into a Message. A rule
subclasses :class:`HDPStrategy`, names what it needs disclosed and writes ``combine``; any ServerApp
can run it with Flower's own ``start``, ours runs it with ``server_app/rounds.py``.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hdpfl_flower import wire
from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.models import Arrays, flatten, unflatten
from hdpfl_flower.noise import RandomStream, ReleaseStreams
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.exchange import Exchange
from strategies.roster import Roster, site_order

log = logging.getLogger("hdpfl.server")

MAX_NORM = 1e6
"""An update of a larger l2 norm is dropped: the noise of an honest one stays far below."""

State = Mapping[str, npt.NDArray[np.float64]]
"""What a rule carries from round to round: arrays by name, so that a checkpoint can hold it."""

Disclosed = Mapping[str, Mapping[str, float]]
"""What each site disclosed: site → fact → number."""


@dataclass
class RoundReport:
    """What became of one round, for the journal.

    Attributes:
        server_round: from 1.
        asked: the sites that got instructions.
        quorum: updates that are needed.
        accepted: the sites whose update was used, in row order.
        rejected: site → why its reply was not used.
        outcome: None where there was no quorum; then the model stays as it was.
    """

    server_round: int
    asked: list[str]
    quorum: int
    accepted: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None


class HDPStrategy(Strategy):
    """A federated round in which every site has its own noise and nobody is trusted.

    Attributes:
        name: as users write it in ``strategy``.
        needs: facts that each site must disclose to take part, see ``wire.SITE_KEYS``.

    Guarantees:
        Whatever the replies hold, a round ends with a finite model of the same names and shapes,
        or with the model it began with; a bad reply is dropped and recorded.
    """

    name: ClassVar[str]

    def __init__(self, terms: RunTerms) -> None:
        """Prepare for the run of ``terms``."""
        self.terms, self.needs = terms, self.discloses(terms)
        self.roster = Roster(terms, self.needs)
        self.state = self.initial_state()
        self.report = RoundReport(0, [], 0)
        self._noise = ReleaseStreams.fresh().noise
        self._like: Arrays = {}
        self._exchange: Exchange | None = None
        self._prepared = False

    # --- what a rule writes ------------------------------------------------------------------

    @classmethod
    def discloses(cls, terms: RunTerms) -> frozenset[str]:
        """Return the facts of a site that the rule weighs by under ``terms``."""
        del terms
        return frozenset()

    def initial_state(self) -> State:
        """Return the state before the first round."""
        return {}

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms to send, given what the sites disclosed."""
        del disclosed
        return terms

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

    # --- Flower's Strategy -------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the instructions of a round."""
        del config  # the terms hold everything
        self._prepare(grid)
        self.roster.refresh(grid)
        asked = self._sample(server_round)
        quorum = self.terms.quorum or math.ceil(2 * len(asked) / 3)
        self.report = RoundReport(server_round, asked, max(quorum, 1))
        self._like = {name: array.numpy() for name, array in arrays.items()}
        return self._address(wire.TRAIN, server_round, arrays, asked)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next model, or None without a quorum; ``report`` says what happened."""
        report, model = self.report, flatten(self._like)
        rows = self._accept(replies, len(model))
        report.accepted = sorted(rows, key=site_order)
        if len(rows) < report.quorum:
            log.warning(
                "round %d: %d of the %d updates needed; the model stays as it was",
                server_round, len(rows), report.quorum,
            )  # fmt: skip
            return None, None
        updates = RoundUpdates(
            server_round=server_round,
            sites=tuple(report.accepted),
            updates=np.stack([rows[site] for site in report.accepted]),
            disclosed={fact: self._column(fact) for fact in sorted(self.needs)},
        )
        self.state, outcome = self.combine(self.state, updates, self._noise)
        check_outcome(outcome, updates)
        report.outcome = outcome
        return wire.write_model(unflatten(model + outcome.update, self._like)), None

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
        """Return the plain mean over the sites that disclose metrics; they keep their counts."""
        del server_round
        found: dict[str, list[float]] = {}
        for site, reply in self._match(replies):
            try:
                metrics = wire.read_metrics(reply.content) if reply.has_content() else {}
            except wire.WireError as error:
                log.warning("site %s: %s", site, error)
                continue
            for name, value in metrics.items():
                found.setdefault(name, []).append(value)
        return MetricRecord({n: float(np.mean(found[n])) for n in sorted(found)}) if found else None

    def summary(self) -> None:
        """Log what will run."""
        needs = ", ".join(sorted(self.needs)) or "nothing"
        log.info("strategy %s, %d rounds; sites disclose: %s", self.name, self.terms.rounds, needs)

    # --- the end of a run --------------------------------------------------------------------

    def finish_messages(self, arrays: ArrayRecord, grid: Grid) -> Iterable[Message]:
        """Return the messages that bring the final model to every site online."""
        self.roster.refresh(grid)
        return self._address(wire.FINISH, self.terms.rounds, arrays, list(self.roster.nodes))

    # --- parts -------------------------------------------------------------------------------

    def _prepare(self, grid: Grid) -> None:
        """Wait for the sites, learn what they disclose and settle the terms; before round 1."""
        if self._prepared:
            return
        self.roster.gather(grid)
        eligible, needs = self.roster.eligible(), ", ".join(sorted(self.needs))
        for site in set(self.roster.nodes) - set(eligible):
            log.warning("site %s does not disclose %s and is left out", site, needs)
        if not eligible:
            raise StrategyError(
                f"strategy '{self.name}' needs {needs}, which no site discloses; list it under "
                "'disclose' in the profiles, or take a strategy that needs nothing"
            )
        self.terms = self.propose(self.terms, {s: self.roster.disclosed[s] for s in eligible}
                                  if self.needs else {})  # fmt: skip
        self._prepared = True

    def _sample(self, server_round: int) -> list[str]:
        """Return the sites of a round, in order; by the terms' seed and the round alone."""
        sites = self.roster.eligible()
        count = max(1, round(self.terms.fraction * len(sites)))
        if count >= len(sites):
            return sites
        generator = np.random.default_rng([self.terms.seed, server_round])
        return [sites[i] for i in sorted(generator.choice(len(sites), count, replace=False))]

    def _address(
        self, kind: str, server_round: int, arrays: ArrayRecord, sites: list[str]
    ) -> Iterable[Message]:
        content = wire.write_instructions(self.terms, server_round, arrays)
        nodes = {site: self.roster.nodes[site] for site in sites}
        self._exchange = Exchange(content, kind, nodes, server_round, self.terms.round_timeout)
        return self._exchange.messages

    def _match(self, replies: Iterable[Message]) -> Iterable[tuple[str, Message]]:
        return self._exchange.match(replies) if self._exchange else ()

    def _accept(self, replies: Iterable[Message], size: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return the updates that pass every check; ``report.rejected`` says why others do not."""
        rows, rejected = {}, self.report.rejected
        rejected.update(dict.fromkeys(self.report.asked, "no reply in time"))
        for site, reply in self._match(replies):
            try:
                rows[site] = read_checked(reply, size)
                del rejected[site]
            except wire.WireError as error:
                rejected[site] = str(error)
        for site, reason in rejected.items():
            log.warning("round %d: site %s: %s", self.report.server_round, site, reason)
        return rows

    def _column(self, fact: str) -> npt.NDArray[np.float64]:
        return np.array([self.roster.disclosed[site][fact] for site in self.report.accepted])


_WORDS = {
    wire.DECLINED: "declined",
    wire.FAILED: "failed",
    **dict.fromkeys((3, 4, 5), "no reply in time"),  # the SuperLink's, for a site late or gone
}
"""What the journal says of a site's code."""


def read_checked(reply: Message, size: int) -> npt.NDArray[np.float32]:
    """Return the update in ``reply``, shape ``(size,)``.

    Raises:
        wire.WireError: the site sent a code instead, or something that cannot be used.
    """
    if reply.has_error():
        raise wire.WireError(_WORDS.get(reply.error.code, f"not delivered: {reply.error.code}"))
    update = wire.read_update(reply.content, size)
    if not np.square(update, dtype=np.float64).sum() <= MAX_NORM**2:
        raise wire.WireError("update: its norm is out of range")
    return update


def check_outcome(outcome: Outcome, updates: RoundUpdates) -> None:
    """Refuse a rule's result that no rule may give.

    Raises:
        StrategyError: weights not finite, negative or not summing to 1, or an update that is not
            finite or has another shape.
    """
    weights, update = outcome.weights, outcome.update
    if weights.shape != (len(updates.sites),) or not np.all(weights >= 0):
        raise StrategyError("the rule gave weights that are not one number >= 0 a site")
    if abs(float(weights.sum()) - 1) > 1e-6:
        raise StrategyError("the rule gave weights that do not sum to 1")
    if update.shape != updates.updates.shape[1:] or not np.isfinite(update).all():
        raise StrategyError("the rule gave an update of another shape, or not finite")
