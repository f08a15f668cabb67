"""What became of a round: the base fills it in, the journal tells it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hdpfl_flower import wire
from hdpfl_flower.updates import Outcome
from strategies.core.checks import WORDS


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
        bytes_down: of the instructions to all sites, see :func:`wire.content_bytes`.
        bytes_up: of the replies that came, used or not.
        norms: l2 norms of the updates that were used, in row order; none where a trusted server
            adds the noise, for these updates have none yet.
    """

    server_round: int
    asked: list[str]
    quorum: int
    accepted: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    outcome: Outcome | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    norms: list[float] = field(default_factory=list)

    @property
    def declined(self) -> list[str]:
        """The sites that declined: by policy, by their terms, or with their budget used up."""
        word = WORDS[wire.DECLINED]
        return [site for site, reason in self.rejected.items() if reason == word]
