"""Work with a part that stays: FedPer, FedRep, FedBABU, and the masks of DP-pFedDSU.

The site joins the shared coordinates of the message with its own, trains in phases, and sends the
shared coordinates of the noisy update. FedPer (arXiv:1912.00818) trains jointly, FedRep (ICML 2021)
the own part first, FedBABU (ICLR 2022) the shared part alone; DP-pFedDSU (arXiv:2503.09192) trains
and sends a masked body.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from client_app.work.base import LocalWork, OwnRound, Train, Vector
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines.dpsgd import Course, Mask, Phase
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.work.parted import Alternate, Parted


class PartedWork(LocalWork):
    """Joint steps of both parts; the own one stays.

    Attributes:
        settings: of the run.
        own: range of the part that stays.
    """

    settings: Parted

    def __init__(self, terms: RunTerms, task: Task, sent: int) -> None:
        """Prepare the coordinates; raises ``ModelError`` without a head apart from a body."""
        super().__init__(terms, task, sent)
        parts = parts_of(terms.model, task)
        self.size = parts.size
        self.sent = parts.of(self.settings.sent_part)
        self.own = parts.of(self.settings.own_part)
        self.own_size = self.own.stop - self.own.start

    def first(self) -> Vector:
        """Return the part of the public first model."""
        return flatten(arrays_of(build_model(self.terms.model, self.task, seed=0)))[self.own]

    def whole(self, shared: Vector, vector: Vector) -> Vector:
        """Return both parts in one vector."""
        whole = np.empty(self.size, np.float32)
        whole[self.sent], whole[self.own] = shared, vector
        return whole

    def course(self, round_: OwnRound, steps: int, shared: Vector, train: Train) -> Course:
        """Return one phase on both parts."""
        return Course((self.masked(round_, steps, slice(0, self.size), shared, train),))

    def moved(self, vector: Vector, update: Vector) -> Vector:
        """Return the part with its own coordinates of the update."""
        return vector + update[self.own]

    def masked(
        self, round_: OwnRound, steps: int, place: slice, shared: Vector, train: Train
    ) -> Phase:
        """Return the sent part's phase, less a charged mask's step."""
        steps -= self.settings.extra_steps
        return Phase(steps, place, self._mask(round_, shared, steps, train))

    def _mask(self, round_: OwnRound, shared: Vector, steps: int, train: Train) -> Mask | None:
        """Return the mask of the sent coordinates, shape ``(D,)``; None: all of them."""
        kind, size = self.settings.mask, len(shared)
        if kind == "none":
            return None
        if kind == "random":
            # Drawn anew in each round, from no record.
            stream = round_.site.streams(round_.number, "mask").sampling
            size_of = np.frombuffer(stream.bytes(8 * size), np.uint64).astype(np.float64)
        elif kind == "global-magnitude":
            size_of = np.abs(shared)
        elif kind == "noisy-updates":
            if round_.state.summed is None:
                return None  # in its first round a site has no noisy update yet
            size_of = np.abs(round_.state.summed)
        else:  # charged-top-k: the noisy gradient of one step; published: of clean weights
            moved = train(Phase(1 if kind == "charged-top-k" else steps, self.sent))
            update = moved[self.sent]
            size_of = np.abs(update if kind == "charged-top-k" else shared + update)
        mask = np.ones(self.size, np.bool_)
        mask[self.sent] = top_share(size_of, self.settings.share)
        return mask


class AlternateWork(PartedWork):
    """First the own part, then the sent one."""

    settings: Alternate

    def course(self, round_: OwnRound, steps: int, shared: Vector, train: Train) -> Course:
        """Return the phase of the own part, if it has a step, and that of the sent one."""
        left = steps - self.settings.extra_steps
        first = min(self.settings.own_steps or max(1, left // 2), left - 1)
        phases = (Phase(first, self.own),) if first else ()
        return Course((*phases, self.masked(round_, steps - first, self.sent, shared, train)))


class FrozenWork(PartedWork):
    """The sent part alone."""

    def course(self, round_: OwnRound, steps: int, shared: Vector, train: Train) -> Course:
        """Return one phase on the sent part."""
        return Course((self.masked(round_, steps, self.sent, shared, train),))


def top_share(magnitudes: npt.NDArray[np.floating], share: float) -> Mask:
    """Return which of the magnitudes are among the largest ⌈share·d⌉, shape ``(d,)``.

    >>> top_share(np.array([3.0, 1.0, 2.0, 0.0]), 0.5)
    array([ True, False,  True, False])
    """
    count = int(np.ceil(share * len(magnitudes)))
    least = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    keep: Mask = magnitudes > least
    # Of equals the first: ties fall the same way on every machine.
    keep[np.flatnonzero(magnitudes == least)[: count - int(keep.sum())]] = True
    return keep
