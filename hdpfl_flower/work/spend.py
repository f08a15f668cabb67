"""Noise over the rounds of a run: equal, or falling by a public factor.

Kiani et al., Differentially Private Federated Learning With Time-Adaptive Privacy Spending (ICLR
2025, arXiv 2502.18706): clients save privacy in early rounds and spend it in late ones. Theirs
differ in the sampling of records; here all sites' noise falls by the same factor, which the server
knows, so that it can estimate noise over the rounds.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from hdpfl_flower.config.kind import Kind

_STAGES = 4
"""Levels of noise at most: the cost of a run is composed of as many distributions."""


class Spend(Kind):
    """The same noise in every round."""

    key, kind = "spend", "even"

    def noise_factor(self, server_round: int, rounds: int) -> float:
        """Return the noise of a round, from 1, over that of the last of so many; at least 1."""
        del server_round, rounds
        return 1.0

    def quietest(self, rounds: int) -> int:
        """Return the number of rounds of the least noise, of which the last is one."""
        return rounds


class Late(Spend):
    """Noise that falls in four equal parts of the run, by the same factor from each to the next."""

    kind = "late"
    ratio: Annotated[float, Field(ge=1, le=16)] = Field(
        1.5, description="Noise of the first rounds divided by the noise of the last rounds."
    )

    def noise_factor(self, server_round: int, rounds: int) -> float:
        """Return the noise of a round over that of the last.

        >>> [round(Late(ratio=8).noise_factor(each, 8), 6) for each in range(1, 9)]
        [8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0]
        """
        stages = min(_STAGES, rounds)
        stage = stages * (min(server_round, rounds) - 1) // rounds
        return self.ratio ** (1 - stage / (stages - 1)) if stages > 1 else 1.0

    def quietest(self, rounds: int) -> int:
        """Return the number of rounds in the last part."""
        return rounds // min(_STAGES, rounds)

    @property
    def is_unlike_rounds(self) -> bool:
        """Whether rounds differ in their noise."""
        return True


SPENDS: Final[dict[str, type[Spend]]] = {kind.kind: kind for kind in (Spend, Late)}
"""Every kind by its name."""
