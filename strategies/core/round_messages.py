"""Messages of a round, acceptance of the replies, and the record of both for the journal."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.update_matrix import GIVEN_BACK, give_back_freed_memory, update_matrix
from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.checks import NO_REPLY, check_norm, read_checked, rejection_of
from strategies.core.exchange import Exchange
from strategies.core.interface import SiteRequest
from strategies.core.model_record import ModelRecord
from strategies.core.roster import Roster

log = logging.getLogger("hdpfl.server")


@dataclass
class RoundReport:
    """The record of one round.

    Attributes:
        server_round: from 1.
        asked: the sites that got instructions.
        quorum: updates that are needed.
        answered: the sites with a readable reply, used or not.
        accepted: the sites of the used updates, in row order.
        rejected: site → why its reply was not used.
        outcome: None where there was no quorum; then the model stays as it was.
        taken_back: site → coefficient that the guard or a revision takes off its earlier updates in
            the model.
        bytes_down: of the instructions to all sites, see :func:`server_wire.content_bytes`.
        bytes_up: of the replies received, used or not.
        norms: l2 norms of the updates that were used, in row order; empty with ``noise = server``:
            not noisy yet.
    """

    server_round: int
    asked: list[str]
    quorum: int
    answered: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    rejected: dict[str, Rejected] = field(default_factory=dict)
    outcome: Outcome | None = None
    taken_back: dict[str, float] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    norms: list[float] = field(default_factory=list)

    @property
    def declined(self) -> list[str]:
        """Sites that declined: by policy, terms or used-up budget."""
        return [s for s, reason in self.rejected.items() if reason.code is Rejection.DECLINED]


class TogetherRounds(ABC):
    """Rounds of a source of noise whose sites act together.

    Attributes:
        terms: the run's.
        declined: sites that are not asked again.
    """

    terms: RunTerms
    declined: set[str]

    @abstractmethod
    def choose(self, server_round: int, sites: Sequence[str], online: int) -> list[str]:
        """Return the sites of a round, of those drawn; raises ``StrategyError`` for too few."""

    @abstractmethod
    def text_of(self, sites: Iterable[str]) -> str:
        """Return the text of a round for its messages, see ``wire.Instructions.of_noise``."""

    @abstractmethod
    def accept(
        self,
        replies: Iterable[tuple[str, Message]],
        report: RoundReport,
        size: int,
        head: Head | None,
    ) -> RoundUpdates:
        """Return the updates of the replies; ``report`` gets the sites, or why they fail."""

    @abstractmethod
    def read_rows(self, parts: npt.NDArray[Any], *, is_whole: bool) -> npt.NDArray[np.float64]:
        """Return the readable rows of payloads, one a site; ``is_whole``: each site answered."""

    @abstractmethod
    def recall(self, event: Mapping[str, Any]) -> None:
        """Note a round of the journal, as a resumed run does."""


class RoundMessages:
    """Messages of a run's last request, with their replies.

    Attributes:
        bytes_down: of the last instructions to all sites, see :func:`server_wire.content_bytes`.
    """

    def __init__(
        self,
        roster: Roster,
        record: ModelRecord,
        server: ServerTerms,
        facts: Iterable[str],
        *,
        several_models: bool,
    ) -> None:
        """Prepare for the rounds of a run.

        Args:
            roster: the sites, and their disclosed facts.
            record: the models of the round.
            server: the keys that the server alone reads.
            facts: those that updates come with.
            several_models: whether an update is of one of several models.
        """
        self._roster, self._record, self._server = roster, record, server
        self._runs_dir = runs_dir(server.runs_dir)
        self._facts, self._several_models = sorted(facts), several_models
        self._requests: dict[str, SiteRequest] = {}
        self._exchange: Exchange | None = None
        self.bytes_down = 0

    def address(
        self, kind: str, server_round: int, terms: RunTerms, requests: Mapping[str, SiteRequest]
    ) -> Iterable[Message]:
        """Return the messages of ``kind`` to the sites.

        Args:
            kind: of the messages.
            server_round: from 1.
            terms: to send.
            requests: site → its request, of the models that the record has open.
        """
        # One content for all sites of the same request: models are encoded once.
        contents = {
            request: self._record.message(terms, server_round, request, kind)
            for request in sorted(set(requests.values()), key=str)
        }
        if kind == wire.TRAIN:
            self._requests = dict(requests)
            sizes = {
                request: server_wire.content_bytes(content) for request, content in contents.items()
            }
            self.bytes_down = sum(sizes[request] for request in requests.values())
        nodes = {site: self._roster.nodes[site] for site in requests}
        self._exchange = Exchange(
            {site: contents[request] for site, request in requests.items()},
            kind,
            nodes,
            server_round,
            self._server.round_timeout,
        )
        return self._exchange.messages

    @property
    def size(self) -> int:
        """d, the numbers of a model."""
        return self._record.size

    @property
    def asked(self) -> list[str]:
        """Sites of the last messages, in order."""
        return self._exchange.sites if self._exchange else []

    def match(self, replies: Iterable[Message]) -> Iterable[tuple[str, Message]]:
        """Yield (site, reply) of the last messages, once per site."""
        return self._exchange.match(replies) if self._exchange else ()

    def accept(
        self,
        replies: Iterable[Message],
        report: RoundReport,
        terms: RunTerms,
        head: Head | None,
    ) -> RoundUpdates:
        """Return the updates that pass every check, in order.

        ``report`` receives their sites, and the reasons against the others.
        """
        size = self._record.size
        asked, rejected = report.asked, report.rejected
        # Each site counts as without a reply until one passes every check.
        rejected.update(dict.fromkeys(asked, NO_REPLY))
        rows = update_matrix(len(asked), size, self._runs_dir / terms.run_id)
        squares, models = np.zeros(len(asked)), np.zeros(len(asked), np.int64)
        projected = np.zeros(len(asked), np.bool_)
        for site, reply in self.match(replies):
            try:
                if reply.has_content():
                    report.bytes_up += server_wire.content_bytes(reply.content)
                row = asked.index(site)
                rows[row], models[row], projected[row] = self._read(site, reply, size, terms)
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
        several, chose = self._several_models, [request.use == wire.CHOOSE for request in requests]
        return RoundUpdates(
            report.server_round,
            tuple(report.accepted),
            rows[: len(stay)],
            {fact: self._column(fact, report.accepted) for fact in self._facts},
            head,
            group=models[stay] if several else None,
            chose=np.array(chose, dtype=np.bool_) if several else None,
            squares=squares[stay],
            projected=projected[stay] if any(request.along for request in requests) else None,
        )

    def _read(
        self, site: str, reply: Message, size: int, terms: RunTerms
    ) -> tuple[npt.NDArray[np.float32], int, bool]:
        """Return a reply's row, its model, and whether it was one number.

        Raises:
            wire.WireError: the site sent a code instead, or something that cannot be used.
        """
        request, models = self._requests[site], len(self._record.models)
        chooses = request.use == wire.CHOOSE and models > 1
        update = read_checked(
            reply, size, may_be_projected=request.along is not None, with_choice=chooses
        )
        model = server_wire.read_choice(reply.content, models) if chooses else request.model
        if request.along is None or size == 1:
            return update, model, False
        check_norm(update)  # before the projection: its factors are bounded
        is_number = len(update) == 1
        # A site that lost its model sends the whole: the number that it would have sent, to the bit
        number = float(update[0]) if is_number else float(request.along.project(update)[0])
        return request.along.lift(number), model, is_number

    def _column(self, fact: str, sites: Iterable[str]) -> npt.NDArray[np.float64]:
        return np.array([self._roster.disclosed[site].get(fact, np.nan) for site in sites])
