"""What a lying site sends: the attacks that the guards are measured against.

A simulated liar knows its own records, so that it knows ``clean``, its update without noise, and
``honest``, what it would have sent. It may collude with the other liars of its run and remembers
what it sent. It does not see the updates of honest sites: none does before the round has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import TermsError

Vector = npt.NDArray[np.float32]

TINY = 1e-3
"""An honest update times this: quiet enough to take all the weight of a rule that trusts noise."""
JITTER = 1e-3
"""Relative noise of one coordinate, with which colluders hide that they send the same."""
OVERSTATED = 20.0
"""The ε that ``overstated-epsilon`` discloses; its noise stays as its own ε asks."""


@dataclass(frozen=True)
class AttackerView:
    """The vectors that an attacker can use in one round, and its randomness.

    Attributes:
        clean: float32, shape ``(d,)``: its update without noise.
        honest: the update that an honest site would send, of that shape.
        before: the update that it sent first in this run; None in its first round.
        generator: the attacker's own randomness.
    """

    clean: Vector
    honest: Vector
    before: Vector | None
    generator: np.random.Generator


def zero(sight: AttackerView) -> Vector:
    """Return zeros: no noise, so all the weight, and no progress."""
    return np.zeros_like(sight.honest)


def tiny(sight: AttackerView) -> Vector:
    """Return an honest update that is scaled down to nearly nothing."""
    return _scaled(TINY, sight.honest)


def constant(sight: AttackerView) -> Vector:
    """Return the same number everywhere, as large as the honest update's coordinates are."""
    size = float(np.sqrt(np.mean(np.square(sight.honest, dtype=np.float64))))
    return np.full_like(sight.honest, size)


def repeated(sight: AttackerView) -> Vector:
    """Return what was sent in the first round, again and again: no noise between two uploads."""
    return sight.honest if sight.before is None else sight.before


def honest(sight: AttackerView) -> Vector:
    """Return the honest update; the lie is elsewhere."""
    return sight.honest


def reversed_by(factor: float) -> Callable[[AttackerView], Vector]:
    """Return the attack that sends −factor times the liar's update without noise."""
    return lambda sight: _scaled(-factor, sight.clean)


ATTACKS: Final[dict[str, Callable[[AttackerView], Vector]]] = {
    "zero": zero,
    "tiny": tiny,
    "constant": constant,
    "repeated": repeated,
    "minus-1": reversed_by(1),
    "minus-5": reversed_by(5),
    "minus-50": reversed_by(50),
    "overstated-epsilon": honest,
}
"""Every attack by the name that users write."""

DISGUISES: Final = ("same", "jitter", "hidden")
"""What may follow after ``+``: all liars send what the first one sends; the same, each jittered;
or each with the noise that it would have added honestly."""


@dataclass(frozen=True)
class Attack:
    """Who lies, and how: ``Attack("minus-5+jitter", sites=(3, 7))``.

    Attributes:
        name: an attack, and after ``+`` a disguise.
        sites: partitions of the liars.

    Raises:
        TermsError: there is no such attack or disguise, or nobody lies.
    """

    name: str
    sites: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the name."""
        kind, plus, disguise = self.name.partition("+")
        if kind not in ATTACKS or (plus and disguise not in DISGUISES):
            raise TermsError(
                f"attack: '{self.name}' is not known; choose one of {', '.join(ATTACKS)}, and "
                f"after '+' one of {', '.join(DISGUISES)}"
            )
        if not self.sites:
            raise TermsError("attack: name the sites that lie")

    @property
    def kind(self) -> str:
        """The attack, without its disguise."""
        return self.name.partition("+")[0]

    @property
    def disguise(self) -> str:
        """``same``, ``jitter``, ``hidden`` or nothing."""
        return self.name.partition("+")[2]

    def forge(self, sight: AttackerView, leader: Vector | None) -> Vector:
        """Return what a liar sends, shape ``(d,)``.

        Args:
            sight: what it has before it.
            leader: what the round's first liar would send without its disguise; None for itself.
        """
        plain = ATTACKS[self.kind](sight)
        if self.disguise in ("same", "jitter") and leader is not None:
            plain = leader
        if self.disguise == "jitter":
            noise = sight.generator.standard_normal(len(plain))
            return (plain * (1 + JITTER * noise)).astype(np.float32)
        if self.disguise == "hidden":
            # honest − clean is the noise that the site drew for its honest update.
            hidden: Vector = plain + (sight.honest - sight.clean)
            return hidden
        return plain


def _scaled(factor: float, update: Vector) -> Vector:
    scaled: Vector = (factor * update.astype(np.float64)).astype(np.float32)
    return scaled
