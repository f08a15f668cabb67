"""Rounds with shared noise, at the server: the sites of a sum, and the sum of their parts.

``hdpfl_flower/shared_noise`` has the sites' side and the proofs. A round has a sum if every site of
its set answers; else it is lost, and the sites that failed are left out of the next ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.monitoring.rejection import Rejection, rejections_in
from hdpfl_flower.shared_noise.members import PART, members_of, write_set
from hdpfl_flower.shared_noise.ring import decode
from hdpfl_flower.shared_noise.rules import colluders_of
from hdpfl_flower.updates import RoundUpdates
from strategies.core.checks import NO_REPLY, check_delivered, check_norm, rejection_of
from strategies.core.round_messages import RoundReport, TogetherRounds

log = logging.getLogger("hdpfl.server")


@dataclass
class Rounds(TogetherRounds):
    """The sets of a run's rounds.

    Attributes:
        terms: the run's.
        failures: site → rounds that were lost by its silence.
        back: site → first round that asks it again.
        declined: sites that declined twice, by policy, terms or used-up budget; they are not asked
            again.
    """

    terms: RunTerms
    failures: dict[str, int] = field(default_factory=dict)
    back: dict[str, int] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)

    def number(self, site: str) -> int:
        """Return the number of a site among the members, or −1 for none."""
        names = list(members_of(self.terms.members))
        if names:
            return names.index(site) if site in names else -1
        return int(site) if site.isascii() and site.isdigit() else -1

    def text_of(self, sites: Iterable[str]) -> str:
        """Return a round's set, for its messages."""
        return write_set([self.number(site) for site in sites])

    def choose(self, server_round: int, sites: Sequence[str], online: int) -> list[str]:
        """Return the sites of a round: members, but for those left out after a lost round.

        Args:
            server_round: from 1.
            sites: that were drawn for it.
            online: sites in all; without a list, each of them is a member.

        Raises:
            StrategyError: too few members are online, or are drawn.
        """
        members = [site for site in sites if self.number(site) >= 0 and site not in self.declined]
        ready = [site for site in members if self.back.get(site, 0) <= server_round]
        least = self.least(online)
        # Rather a site that failed once than no round.
        chosen = ready if len(ready) >= least else members
        if len(chosen) < least:
            raise StrategyError(
                f"noise = 'shared' needs {least} sites in a round, and {len(chosen)} members "
                "are online, drawn and take part; 'members' lists each by the name of its "
                "node. Wait for more sites with 'min-sites', raise 'fraction', or lower "
                "'least-members' or 'colluders'"
            )
        return chosen

    def least(self, online: int) -> int:
        """Return the least number of sites of a round."""
        members = len(members_of(self.terms.members)) or online
        return max(colluders_of(self.terms, members) + 2, self.terms.least_members)

    def read_rows(self, parts: npt.NDArray[Any], *, is_whole: bool) -> npt.NDArray[np.float64]:
        """Return the sum of parts as one row; none where a site's is missing: masks stay then."""
        total = parts.astype(np.uint64).sum(0, dtype=np.uint64)[None]
        return decode(total) if is_whole else np.zeros((0, parts.shape[1]))

    def recall(self, event: Mapping[str, Any]) -> None:
        """Note a round of the journal, as a resumed run does: its sets go on as they were."""
        self.note_lost(event["round"], _of(event["asked"], rejections_in(event)))

    def note_lost(self, server_round: int, codes: Mapping[str, Rejection]) -> None:
        """Leave the sites without a usable part out of the next rounds, longer each time."""
        # Once may be of a round that was answered for another set.
        again = codes.keys() & self.failures.keys()
        declined = {site for site in again if codes[site] is Rejection.DECLINED}
        self.declined |= declined
        for site in sorted(declined):
            log.warning("site %s declines the sum, so it is not asked again", site)
        for site in sorted(codes.keys() - declined):
            count = self.failures.get(site, 0) + 1
            self.failures[site] = count
            pause = max(3, self.terms.rounds // 10) * 2 ** (count - 1)
            self.back[site] = server_round + 1 + pause
            log.warning(
                "round %d is lost, because site %s did not take part in its sum; the site is "
                "asked again from round %d",
                server_round,
                site,
                self.back[site],
            )

    def accept(
        self,
        replies: Iterable[tuple[str, Message]],
        report: RoundReport,
        size: int,
        head: Head | None,
    ) -> RoundUpdates:
        """Return the mean step of all records, in the place of each site's update.

        ``report`` receives the sites, or the reasons against some: then no row is returned.

        Args:
            replies: site and reply, once per site.
            report: of the round.
            size: d.
            head: position of the model's softmax layer, if any.
        """
        total, rejected = np.zeros(size + 1, np.uint64), report.rejected
        rejected.update(dict.fromkeys(report.asked, NO_REPLY))
        for site, reply in replies:
            try:
                if reply.has_content():
                    report.bytes_up += server_wire.content_bytes(reply.content)
                check_delivered(reply)
                part = server_wire.read_numbers(PART, reply.content, size + 1, "uint64")
                total += part  # wraps: arithmetic modulo 2⁶⁴
                report.answered.append(site)
                del rejected[site]
            except wire.WireError as error:
                rejected[site] = rejection_of(error)
        server_round = min(report.server_round, self.terms.rounds)
        empty = RoundUpdates(server_round, (), np.zeros((0, size), np.float32), head=head)
        codes = {site: why.code for site, why in rejected.items()}
        if missing := _of(report.asked, codes):
            self.note_lost(report.server_round, missing)
            return empty
        sums = decode(total)
        # Sites scale by 1/C; only a lie of a member, which nothing can tell, makes the weight 0.
        rate = self.terms.learning_rate * self.terms.clip_norm / sums[-1] if sums[-1] > 0 else 0.0
        step = (-rate * sums[:-1]).astype(np.float32)
        try:
            square = check_norm(step)
        except wire.WireError as error:
            rejected.update(dict.fromkeys(report.asked, rejection_of(error)))
            return empty
        report.accepted = list(report.asked)
        count = len(report.accepted)
        return RoundUpdates(
            server_round,
            tuple(report.accepted),
            np.broadcast_to(step, (count, size)),
            head=head,
            squares=np.full(count, square),
        )


def _of(asked: Iterable[str], codes: Mapping[str, Rejection]) -> dict[str, Rejection]:
    """Return the codes of the sites that were asked."""
    return {site: codes[site] for site in asked if site in codes}
