"""Schedules of a rate, as factors of its first value.

Constant, 1/(log₁₀(e + 1) + 1), 1/√(e + 1), 1/(e + 1) and halved every T rounds, e = 0, 1, …, are
those of operator splitting (``docs/concepts/splitting.md``); ``linear`` is 1 − e/E, of E rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hdpfl_flower.errors import TermsError

LEAST = 1e-9
"""Factor that counts as 0: smaller ones move no float32 model."""

_FACTORS: Mapping[str, Callable[[int], float]] = {
    "constant": lambda _: 1.0,
    "log": lambda e: 1 / (math.log10(e + 1) + 1),
    "sqrt": lambda e: 1 / math.sqrt(e + 1),
    "inverse": lambda e: 1 / (e + 1),
}
_LINEAR = "linear"
_HALVED = re.compile(r"halved:([1-9][0-9]{0,8})", re.ASCII)
NAMES = (*_FACTORS, _LINEAR, "halved:T")


@dataclass(frozen=True)
class Schedule:
    """A rate's factor in every round.

    Attributes:
        text: as the key has it, one of :data:`NAMES`.
        rounds: of the run.
    """

    text: str
    rounds: int

    def __call__(self, server_round: int) -> float:
        """Return the factor of round ``server_round`` (from 1), at most 1.

        >>> [Schedule("halved:2", 4)(t) for t in (1, 2, 3, 4)]
        [1.0, 1.0, 0.5, 0.5]
        """
        past = server_round - 1
        if halved := _HALVED.fullmatch(self.text):
            return float(0.5 ** (past // int(halved[1])))
        if self.text == _LINEAR:
            return 1 - past / self.rounds
        return _FACTORS[self.text](past)


def read_schedule(text: str, rounds: int, key: str) -> Schedule:
    """Return the schedule that ``text`` names, for a run of so many rounds.

    Args:
        text: one of :data:`NAMES`.
        rounds: of the run.
        key: of the run config, for messages.

    Raises:
        TermsError: it is none, or it reaches 0 before the last round.
    """
    if text not in (*_FACTORS, _LINEAR) and not _HALVED.fullmatch(text):
        raise TermsError(
            f"run config: '{key}' must be one of {', '.join(NAMES)}, where T is a whole number "
            "of rounds of at least 1"
        )
    schedule = Schedule(text, rounds)
    if schedule(rounds) < LEAST:
        raise TermsError(
            f"run config: '{key}' = '{text}' reaches 0 before round {rounds}: the model would "
            "stand still; take a larger T, or fewer 'rounds'"
        )
    return schedule
