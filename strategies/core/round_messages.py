"""Messages of a round, and acceptance of the replies."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
from flwr.app import Message

from hdpfl_flower import wire
from hdpfl_flower.config.server_terms import ServerTerms
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.update_matrix import GIVEN_BACK, give_back_freed_memory, update_matrix
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.updates import RoundUpdates
from strategies.core.checks import NO_REPLY, check_norm, read_checked, rejection_of
from strategies.core.exchange import Exchange
from strategies.core.interface import SiteRequest
from strategies.core.model_record import ModelRecord
from strategies.core.roster import Roster
from strategies.core.round_report import RoundReport

log = logging.getLogger("hdpfl.server")


class RoundMessages:
    """Messages of a run's last request, with their replies.

    Attributes:
        bytes_down: of the last instructions to all sites, see :func:`wire.content_bytes`.
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
            sizes = {request: wire.content_bytes(content) for request, content in contents.items()}
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
        rows = update_matrix(len(asked), size, runs_dir(self._server.runs_dir) / terms.run_id)
        squares, models = np.zeros(len(asked)), np.zeros(len(asked), np.int64)
        projected = np.zeros(len(asked), np.bool_)
        for site, reply in self.match(replies):
            try:
                if reply.has_content():
                    report.bytes_up += wire.content_bytes(reply.content)
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
        model = wire.read_choice(reply.content, models) if chooses else request.model
        if request.along is None or size == 1:
            return update, model, False
        check_norm(update)  # before the projection: its factors are bounded
        is_number = len(update) == 1
        # A site that lost its model sends the whole: the number that it would have sent, to the bit
        number = float(update[0]) if is_number else float(request.along.project(update)[0])
        return request.along.lift(number), model, is_number

    def _column(self, fact: str, sites: Iterable[str]) -> npt.NDArray[np.float64]:
        return np.array([self._roster.disclosed[site].get(fact, np.nan) for site in sites])
