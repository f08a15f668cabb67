"""Attacks of lying sites, against which guards are measured.

A simulated liar knows its own records, so that it knows ``clean``, its update without noise, and
``honest``, its honest update with noise. It may collude with the other liars of its run and
remembers its earlier updates. It does not see the updates of honest sites before the round ends.

Attacks by form send values that no honest site would: zeros, copies, huge updates. Those by content
(:data:`CONTENT`) look like an honest update with honest noise; those of :data:`POISONS` train on
changed labels. Where a paper's colluders send one vector, each here adds its own noise to it, for
every guard refuses copies.
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
"""Scale of ``tiny``: quiet enough to take all noise-based weight."""
JITTER = 1e-3
"""Relative noise per coordinate that hides colluders' equal updates."""
OVERSTATED = 20.0
"""ε disclosed by ``overstated-epsilon``; the noise stays that of its own ε.

Attacks that add less noise than they disclose use it too.
"""


QUIET = 0.2
"""Noise factor of a site that claims five times its precision."""
INFLATED = 5.0
"""Factor of ``inflated`` on its progress."""
DRIFT = 0.5
"""Bias of ``slow-drift`` over the first round's clean update length."""
REVERSED_MEAN = 0.2
"""Factor of ``minus-mean``: ε of inner product manipulation."""
HIDDEN = 5.0
"""Factor of ``hidden-noise`` on the colluders' mean, under honest noise."""


@dataclass(frozen=True)
class Colluders:
    """Shared vectors of a round's liars, in partition order.

    Attributes:
        clean: float32, shape ``(m, d)``: their updates without noise.
        honest: the updates that honest sites would send in their place, of the same shape.
        sites: n, the sites asked in the round, including the liars.
    """

    clean: npt.NDArray[np.float32]
    honest: npt.NDArray[np.float32]
    sites: int


@dataclass(frozen=True)
class AttackerView:
    """Vectors and randomness available to an attacker in one round.

    Attributes:
        clean: float32, shape ``(d,)``: its update without noise.
        honest: the update that an honest site would send, of the same shape.
        before: its first update in this run; None in its first round.
        generator: the attacker's own randomness.
        together: the shared vectors of the round's liars; None: it is alone.
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
        """Noise of the site's honest update, shape ``(d,)``."""
        return self.honest - self.clean

    @property
    def colluders(self) -> Colluders:
        """Vectors of all liars; of a lone liar its own."""
        return self.together or Colluders(self.clean[None], self.honest[None], 1)

    @property
    def mean(self) -> Vector:
        """Mean of the colluders' clean updates, shape ``(d,)``: their estimated progress."""
        return _float32(self.colluders.clean.mean(0, dtype=np.float64))

    def quieter(self) -> AttackerView:
        """Return the view with ``QUIET`` of every liar's honest noise."""
        own = _float32(self.clean + np.float32(QUIET) * self.noise)
        all_of = self.colluders
        honest = all_of.clean + np.float32(QUIET) * (all_of.honest - all_of.clean)
        return replace(self, honest=own, together=replace(all_of, honest=_float32(honest)))


def zero(sight: AttackerView) -> Vector:
    """Return zeros: full weight without noise, and no progress."""
    return np.zeros_like(sight.honest)


def tiny(sight: AttackerView) -> Vector:
    """Return the honest update scaled to almost zero."""
    return _scaled(TINY, sight.honest)


def constant(sight: AttackerView) -> Vector:
    """Return one number everywhere, of the honest update's root mean square."""
    size = float(np.sqrt(np.mean(np.square(sight.honest, dtype=np.float64))))
    return np.full_like(sight.honest, size)


def repeated(sight: AttackerView) -> Vector:
    """Return the first round's update again: no noise between uploads."""
    return sight.honest if sight.before is None else sight.before


def honest(sight: AttackerView) -> Vector:
    """Return the honest update: the lie is in its ε or its labels."""
    return sight.honest


def reversed_by(factor: float) -> Callable[[AttackerView], Vector]:
    """Return the attack with −``factor`` times the liar's clean update."""

    def attack(sight: AttackerView) -> Vector:
        return _scaled(-factor, sight.clean)

    attack.__doc__ = f"Return −{factor:g} times the liar's update without noise."
    return attack


def inflated(sight: AttackerView) -> Vector:
    """Return the honest update with progress inflated, noise unchanged.

    The factor is ``INFLATED``.

    Source: explicit boosting, Bhagoji et al., Analyzing Federated Learning through an Adversarial
    Lens (ICML 2019).
    """
    return sight.honest + _scaled(INFLATED - 1, sight.clean)


def slow_drift(sight: AttackerView) -> Vector:
    """Return the honest update plus the same small bias every round.

    The vector is −``DRIFT`` times the colluders' mean clean update in the first round: half of the
    progress is undone at first; later, when progress is smaller, the model is driven back.
    """
    first = sight.mean if sight.clean_before is None else sight.clean_before
    return sight.honest - _scaled(DRIFT, first)


def minus_mean(sight: AttackerView) -> Vector:
    """Return the colluders' reversed, scaled mean under own noise.

    The factor is −``REVERSED_MEAN``, on the mean of the clean updates.

    Source: inner product manipulation, Xie, Koyejo and Gupta, Fall of Empires (UAI 2019), with the
    colluders' mean in place of that of honest sites.
    """
    return sight.noise - _scaled(REVERSED_MEAN, sight.mean)


def alie(sight: AttackerView) -> Vector:
    """Return the colluders' mean less z standard deviations, under own noise.

    Source: Baruch, Baruch and Goldberg, A Little Is Enough (NeurIPS 2019), Algorithm 3, from the
    colluders' own updates: see :func:`alie_z`.
    """
    together = sight.colluders
    spread = together.honest.std(0, dtype=np.float64)
    return sight.noise + sight.mean - _scaled(alie_z(together.sites, len(together.clean)), spread)


def alie_z(sites: int, liars: int) -> float:
    """Return z, a deviation that enough honest sites exceed.

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
    # A majority of liars needs no supporter: take the largest z of a normal table.
    share = min((others - max(needed, 0)) / others, 0.999)
    return max(NormalDist().inv_cdf(share), 0.0) if share > 0 else 0.0


def min_max(sight: AttackerView) -> Vector:
    """Return the colluders' mean moved against progress, within their spread.

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
    """Return the largest γ ≥ 0 with max‖mean + γ·p − uᵢ‖ ≤ max‖uᵢ − uⱼ‖.

    It is 0 for one row.

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
    """Return the honest update with progress reversed, noise unchanged.

    Source: Li et al., RSA: Byzantine-Robust Stochastic Aggregation Methods (AAAI 2019).
    """
    return sight.noise - sight.clean


def same_vector(sight: AttackerView) -> Vector:
    """Return the colluders' reversed clean mean without noise, jittered."""
    return _jittered(_scaled(-1, sight.mean), sight.generator)


def hidden_noise(sight: AttackerView) -> Vector:
    """Return the colluders' reversed, enlarged mean under own noise.

    The factor is −``HIDDEN``, on the mean of the clean updates.
    """
    return sight.noise - _scaled(HIDDEN, sight.mean)


def flip_labels(records: Records, task: Task) -> Records:
    """Class y labelled C − 1 − y.

    Source: Tolpegin et al., Data Poisoning Attacks Against Federated Learning Systems (ESORICS
    2020), all classes.

    Raises:
        TermsError: the targets are not classes.
    """
    if not task.classes:
        raise TermsError("attack: 'label-flip' needs classes; the data set has a regression")
    return _with_labels(records, task.classes - 1 - records.targets)


def seven_to_one(records: Records, task: Task) -> Records:
    """Class 7 labelled 1.

    The other records are unchanged.

    Source: targeted flips, as in Tolpegin et al. (ESORICS 2020).

    Raises:
        TermsError: there is no class 7.
    """
    if task.classes <= SOURCE:
        raise TermsError(f"attack: '7-to-1' needs a class {SOURCE}; the data set has none")
    return _with_labels(records, np.where(records.targets == SOURCE, TARGET, records.targets))


SOURCE, TARGET = 7, 1
"""Class relabelled by ``7-to-1``, and its new label."""

Relabel = Callable[[Records, Task], Records]

POISONS: Final[dict[str, Relabel]] = {"label-flip": flip_labels, "7-to-1": seven_to_one}
"""Attack → relabelling of the liar's records before honest training."""

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
"""Attacks by content, by name."""

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
"""All attacks, by name."""

DISGUISES: Final = ("same", "jitter", "hidden", "quiet")
"""Disguises after ``+`` in an attack's name.

``same``: all liars send the first one's vector; ``jitter``: the same, each jittered; ``hidden``:
each adds its honest noise; ``quiet``: every liar adds ``QUIET`` times the noise that its ε asks
for, which buys weight under a strategy that trusts noise, and overstates its ε.
"""


@dataclass(frozen=True)
class Attack:
    """Attack and its liars: ``Attack("minus-5+jitter", sites=(3, 7))``.

    Attributes:
        name: an attack, and after ``+`` a disguise.
        sites: partitions of the liars.

    Raises:
        TermsError: there is no such attack or disguise, or no liar.
    """

    name: str
    sites: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the name and the sites."""
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
        """Name of the attack without its disguise."""
        return self.name.partition("+")[0]

    @property
    def disguise(self) -> str:
        """``same``, ``jitter``, ``hidden``, ``quiet`` or empty."""
        return self.name.partition("+")[2]

    @property
    def overstates(self) -> bool:
        """Whether its liars disclose ``OVERSTATED`` as ε, for plausible little noise."""
        return self.kind in ("overstated-epsilon", "same-vector") or self.disguise == "quiet"

    @property
    def poison(self) -> Relabel | None:
        """Relabelling of a liar's training records, or None."""
        return POISONS.get(self.kind)

    def forge(self, sight: AttackerView, leader: Vector | None) -> Vector:
        """Return a liar's update, shape ``(d,)``.

        Args:
            sight: the attacker's view.
            leader: the first liar's update without its disguise; None for itself.
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
