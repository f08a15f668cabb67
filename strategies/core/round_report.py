"""Mutable record of one round, for the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from hdpfl_flower.monitoring.rejection import Rejected, Rejection
from hdpfl_flower.updates import Outcome


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
        bytes_down: of the instructions to all sites, see :func:`wire.content_bytes`.
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
