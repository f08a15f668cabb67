"""What a lying site sends: the attacks that the guards are measured against.

A simulated liar knows its own records, so that it knows ``clean``, its update without noise, and
``honest``, what it would have sent. It may collude with the other liars of its run and remembers
what it sent. It does not see the updates of honest sites: none does before the round has ended.

Attacks by form send what no honest site would: zeros, copies, huge updates. Attacks by content
(:data:`CONTENT`) look like an honest update with honest noise; those of :data:`POISONS` train on
changed labels. Where a paper's colluders send one vector, each here adds its own noise to it, for
copies are refused by every guard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.task import Records, Task

Vector = npt.NDArray[np.float32]

TINY = 1e-3
"""An honest update times this: quiet enough to take all the weight of a rule that trusts noise."""
JITTER = 1e-3
"""Relative noise of one coordinate, with which colluders hide that they send the same."""
OVERSTATED = 20.0
"""The ε that ``overstated-epsilon`` discloses; its noise stays as its own ε asks. Who adds less
noise than that discloses it, too."""


QUIET = 0.2
"""Times the noise that its ε asks for: what a site adds that claims to be five times as precise."""
INFLATED = 5.0
"""Times its progress: what ``inflated`` sends."""
DRIFT = 0.5
"""Of the length of the first round's clean update: the constant bias of ``slow-drift``."""
REVERSED_MEAN = 0.2
"""``minus-mean`` sends −this times the colluders' mean: ε of inner product manipulation."""
HIDDEN = 5.0
"""``hidden-noise`` sends −this times the colluders' mean, under honest noise."""


@dataclass(frozen=True)
class Colluders:
    """What the liars of a round have between them, a row each, in the order of their partitions.

    Attributes:
        clean: float32, shape ``(m, d)``: their updates without noise.
        honest: the updates that honest sites would send in their place, of that shape.
        sites: n, the sites that the round asks, the liars among them.
    """

    clean: npt.NDArray[np.float32]
    honest: npt.NDArray[np.float32]
    sites: int


@dataclass(frozen=True)
class AttackerView:
    """The vectors that an attacker can use in one round, and its randomness.

    Attributes:
        clean: float32, shape ``(d,)``: its update without noise.
        honest: the update that an honest site would send, of that shape.
        before: the update that it sent first in this run; None in its first round.
        generator: the attacker's own randomness.
        together: what all liars of the round have; None: it is alone.
        clean_before: the mean of the colluders' clean updates in its first round, shape ``(d,)``;
            None in that round.
    """

    clean: Vector
    honest: Vector
    before: Vector | None
    generator: np.random.Generator
    together: Colluders | None = None
    clean_before: Vector | None = None

    @property
    def noise(self) -> Vector:
        """What the site drew as noise for its honest update, shape ``(d,)``."""
        return self.honest - self.clean

    @property
    def colluders(self) -> Colluders:
        """What the liars have between them; a liar alone has its own vectors."""
        return self.together or Colluders(self.clean[None], self.honest[None], 1)

    @property
    def mean(self) -> Vector:
        """The mean of the colluders' clean updates, shape ``(d,)``: their estimate of progress."""
        return _float32(self.colluders.clean.mean(0, dtype=np.float64))

    def quieter(self) -> AttackerView:
        """Return the view in which every liar's honest update has ``QUIET`` of its noise."""
        own = _float32(self.clean + np.float32(QUIET) * self.noise)
        all_of = self.colluders
        honest = all_of.clean + np.float32(QUIET) * (all_of.honest - all_of.clean)
        return replace(self, honest=own, together=replace(all_of, honest=_float32(honest)))


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


def inflated(sight: AttackerView) -> Vector:
    """Return the honest update with ``INFLATED`` times its progress and its noise as it is.

    Source: explicit boosting, Bhagoji et al., Analyzing Federated Learning through an Adversarial
    Lens (ICML 2019).
    """
    return sight.honest + _scaled(INFLATED - 1, sight.clean)


def slow_drift(sight: AttackerView) -> Vector:
    """Return the honest update, moved by the same small vector in every round.

    The vector is −``DRIFT`` times the colluders' mean clean update in the first round: half of the
    progress is undone at first; later, when progress is smaller, the model is driven back.
    """
    first = sight.mean if sight.clean_before is None else sight.clean_before
    return sight.honest - _scaled(DRIFT, first)


def minus_mean(sight: AttackerView) -> Vector:
    """Return −``REVERSED_MEAN`` times the colluders' mean clean update, under its own noise.

    Source: inner product manipulation, Xie, Koyejo and Gupta, Fall of Empires (UAI 2019), with the
    colluders' mean in place of that of honest sites.
    """
    return sight.noise - _scaled(REVERSED_MEAN, sight.mean)


def alie(sight: AttackerView) -> Vector:
    """Return the colluders' mean less z of their standard deviations, under its own noise.

    Source: Baruch, Baruch and Goldberg, A Little Is Enough (NeurIPS 2019), Algorithm 3, from the
    colluders' own updates: see :func:`alie_z`.
    """
    together = sight.colluders
    spread = together.honest.std(0, dtype=np.float64)
    return sight.noise + sight.mean - _scaled(alie_z(together.sites, len(together.clean)), spread)


def alie_z(sites: int, liars: int) -> float:
    """Return z: the deviation that the honest sites nearest to the mean exceed often enough.

    With s = ⌊n/2 + 1⌋ − m supporters needed for a majority, z = Φ⁻¹((n − m − s)/(n − m)), not
    below 0.

    >>> round(alie_z(20, 3), 3), round(alie_z(50, 24), 3)
    (0.074, 1.426)
    >>> alie_z(1, 1)
    0.0
    """
    needed, others = sites // 2 + 1 - liars, sites - liars
    if others < 1:
        return 0.0
    # A majority of liars needs nobody: the largest z that the table of a normal still has.
    share = min((others - max(needed, 0)) / others, 0.999)
    return max(NormalDist().inv_cdf(share), 0.0) if share > 0 else 0.0


def min_max(sight: AttackerView) -> Vector:
    """Return the colluders' mean, moved against progress as far as it stays among their updates.

    The mean clean update + γ·p under its own noise, p = −mean/‖mean‖. γ is the largest at which
    none of the colluders' honest updates is farther from (their mean + γ·p) than the two farthest
    of them are from each other.

    Source: Shejwalkar and Houmansadr, Manipulating the Byzantine (NDSS 2021), min-max with the
    inverse unit vector; the honest updates that it needs are the colluders' own.
    """
    mean, rows = sight.mean, sight.colluders.honest.astype(np.float64)
    length = float(np.linalg.norm(mean))
    if not length:
        return sight.honest
    direction = -mean.astype(np.float64) / length
    return sight.noise + mean + _scaled(largest_move(rows, direction), direction)


def largest_move(rows: npt.NDArray[np.float64], direction: npt.NDArray[np.float64]) -> float:
    """Return the largest γ ≥ 0 with max‖mean + γ·p − uᵢ‖ ≤ max‖uᵢ − uⱼ‖; 0 for one row.

    Args:
        rows: the updates uᵢ, shape ``(m, d)``.
        direction: p, of length 1, shape ``(d,)``.

    >>> largest_move(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([1.0, 0.0]))
    1.0
    >>> largest_move(np.array([[1.0, 0.0]]), np.array([1.0, 0.0]))
    0.0
    """
    widest = max(float(np.sum((a - b) ** 2)) for a in rows for b in rows)
    away = rows.mean(0) - rows
    along, apart = away @ direction, np.sum(away**2, axis=1)
    # ‖away + γ·p‖² = apart + 2γ·along + γ² ≤ widest, for each of them.
    roots = -along + np.sqrt(np.maximum(along**2 - apart + widest, 0))
    return max(float(roots.min()), 0.0)


def sign_flip(sight: AttackerView) -> Vector:
    """Return the honest update with its progress reversed and its noise as it is.

    Source: Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods (AAAI 2019).
    """
    return sight.noise - sight.clean


def same_vector(sight: AttackerView) -> Vector:
    """Return the reversed mean of the colluders' clean updates, without noise, jittered."""
    return _jittered(_scaled(-1, sight.mean), sight.generator)


def hidden_noise(sight: AttackerView) -> Vector:
    """Return −``HIDDEN`` times the colluders' mean clean update, under its own honest noise."""
    return sight.noise - _scaled(HIDDEN, sight.mean)


def flip_labels(records: Records, task: Task) -> Records:
    """Return the records with class y labelled C − 1 − y.

    Source: Tolpegin et al., Data Poisoning Attacks Against Federated Learning Systems (ESORICS
    2020), all classes.

    Raises:
        TermsError: the targets are not classes.
    """
    if not task.classes:
        raise TermsError("attack: 'label-flip' needs classes; the data set has a regression")
    return _with_labels(records, task.classes - 1 - records.targets)


def seven_to_one(records: Records, task: Task) -> Records:
    """Return the records with class 7 labelled 1, and the others as they are.

    Source: targeted flips, as in Tolpegin et al. (ESORICS 2020).

    Raises:
        TermsError: there is no class 7.
    """
    if task.classes <= SOURCE:
        raise TermsError(f"attack: '7-to-1' needs a class {SOURCE}; the data set has none")
    return _with_labels(records, np.where(records.targets == SOURCE, TARGET, records.targets))


SOURCE, TARGET = 7, 1
"""The class whose records ``7-to-1`` relabels, and the label that they get."""

Relabel = Callable[[Records, Task], Records]

POISONS: Final[dict[str, Relabel]] = {"label-flip": flip_labels, "7-to-1": seven_to_one}
"""Attack → what it makes of the liar's training records; its training is an honest site's."""

CONTENT: Final[dict[str, Callable[[AttackerView], Vector]]] = {
    **dict.fromkeys(POISONS, honest),
    "inflated": inflated,
    "slow-drift": slow_drift,
    "minus-mean": minus_mean,
    "alie": alie,
    "min-max": min_max,
    "sign-flip": sign_flip,
    "same-vector": same_vector,
    "hidden-noise": hidden_noise,
}
"""Attacks by content, by the name that users write."""

ATTACKS: Final[dict[str, Callable[[AttackerView], Vector]]] = {
    "zero": zero,
    "tiny": tiny,
    "constant": constant,
    "repeated": repeated,
    "minus-1": reversed_by(1),
    "minus-5": reversed_by(5),
    "minus-50": reversed_by(50),
    "overstated-epsilon": honest,
    **CONTENT,
}
"""Every attack by the name that users write."""

DISGUISES: Final = ("same", "jitter", "hidden", "quiet")
"""What may follow after ``+``: all liars send what the first one sends; the same, each jittered;
each with the noise that it would have added honestly; or every liar adds ``QUIET`` times the noise
that its ε asks for, which buys weight under a rule that trusts noise, and overstates its ε."""


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
        """``same``, ``jitter``, ``hidden``, ``quiet`` or nothing."""
        return self.name.partition("+")[2]

    @property
    def overstates(self) -> bool:
        """Whether its liars disclose ``OVERSTATED`` as their ε: little noise is then plausible."""
        return self.kind in ("overstated-epsilon", "same-vector") or self.disguise == "quiet"

    @property
    def poison(self) -> Relabel | None:
        """What a liar makes of its training records; None: nothing."""
        return POISONS.get(self.kind)

    def forge(self, sight: AttackerView, leader: Vector | None) -> Vector:
        """Return what a liar sends, shape ``(d,)``.

        Args:
            sight: what it has before it.
            leader: what the round's first liar would send without its disguise; None for itself.
        """
        plain = ATTACKS[self.kind](sight.quieter() if self.disguise == "quiet" else sight)
        if self.disguise in ("same", "jitter") and leader is not None:
            plain = leader
        if self.disguise == "jitter":
            return _jittered(plain, sight.generator)
        if self.disguise == "hidden":
            hidden: Vector = plain + sight.noise
            return hidden
        return plain


def _scaled(factor: float, update: npt.NDArray[np.floating]) -> Vector:
    return _float32(factor * update.astype(np.float64))


def _jittered(update: Vector, generator: np.random.Generator) -> Vector:
    return _float32(update * (1 + JITTER * generator.standard_normal(len(update))))


def _float32(values: npt.NDArray[np.floating]) -> Vector:
    return values.astype(np.float32, copy=False)


def _with_labels(records: Records, labels: npt.NDArray[np.number]) -> Records:
    if records.targets.dtype == np.int64:
        return Records(records.features, labels.astype(np.int64))
    return Records(records.features, labels.astype(np.float32))
