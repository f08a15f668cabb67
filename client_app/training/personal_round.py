"""One round of a run with a personal part: the whole model, its phases, and what of it is sent.

The site joins the shared coordinates of the message with its own, trains in phases, and sends the
shared coordinates of the noisy update. FedPer (arXiv:1912.00818) trains jointly, FedRep (ICML 2021)
the personal part first, FedBABU (ICLR 2022) the shared part alone; PPSGD (Bietti et al., ICML 2022)
shares everything and adds an offset of the site's own; DP-pFedDSU (arXiv:2503.09192) trains and
sends a masked body.

Every step is noisy, whichever coordinates it moves: a part that was trained without noise between
releases would shift the gradients of all other records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from client_app.site.personal_state import (
    PersonalState,
    hold_state,
    load_state,
    path_before,
    personal_state_path,
    save_state,
)
from client_app.site.site import Site
from client_app.training.dpsgd import Mask, Phase
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import DataError, Declined, Reason, TermsError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import Parts, parts_of
from hdpfl_flower.models.task import Task

Vector = npt.NDArray[np.float32]
Train = Callable[[Phase], Vector]
"""Steps of a phase → the noisy update of that many steps from the round's start, shape ``(D,)``."""


@dataclass(frozen=True)
class Split:
    """Where the shared and the personal coordinates lie in the whole model.

    Attributes:
        size: D, the numbers of the whole model.
        sent: of what travels, d numbers.
        own: of what stays; None where nothing does.
        moved: of the offset that the site adds under ``offset``; None where there is none.
    """

    size: int
    sent: slice
    own: slice | None
    moved: slice | None


def split_of(terms: RunTerms, task: Task, size: int) -> Split:
    """Return the split of a run's model.

    Args:
        terms: the run's.
        task: whose outputs the head returns.
        size: d, what travels.

    Raises:
        ModelError: the model has no head apart from a body.
    """
    whole, is_offset = slice(0, size), terms.personal_training == "offset"
    if not terms.personal_part:
        return Split(size, whole, None, whole if is_offset else None)
    parts: Parts = parts_of(terms.model, task)
    own = parts.of(terms.personal_part)
    if is_offset:
        return Split(size, whole, None, own)
    return Split(parts.size, parts.of(terms.sent_part), own, None)


def initial_part(terms: RunTerms, task: Task, split: Split) -> Vector:
    """Return the public vector that every site's own part begins with: zeros for an offset."""
    if split.own is None:
        return np.zeros(split.size, np.float32)
    return flatten(arrays_of(build_model(terms.model, task, seed=0)))[split.own]


def whole_model(
    terms: RunTerms, task: Task, split: Split, shared: Vector, part: Vector | None
) -> Vector:
    """Return the model that a site trains and uses, shape ``(D,)``.

    Args:
        terms: the run's.
        task: whose outputs the head returns.
        split: its coordinates.
        shared: what the server sent, shape ``(d,)``.
        part: the site's own (:class:`~client_app.site.personal_state.PersonalState`); None: the
            public one that it begins with.
    """
    if terms.personal_training == "offset":
        return shared if part is None else shared + part
    if split.own is None:
        return shared
    if part is None:
        part = initial_part(terms, task, split)
    whole = np.empty(split.size, np.float32)
    whole[split.sent], whole[split.own] = shared, part
    return whole


class PersonalRound:
    """A site's own coordinates in one round.

    Attributes:
        split: where they lie.
        state: before the round.
        path: of its file.
    """

    def __init__(self, site: Site, server_round: int, size: int) -> None:
        """Read the site's state; nothing of its records.

        Args:
            site: whose round it is.
            server_round: the round.
            size: d, what travels.

        Raises:
            Declined: there is no folder for the state, or the terms are for simulations alone.
            DataError: the state is damaged, or of another model.
            ModelError: the model has no head apart from a body.
        """
        terms = site.terms
        if terms.shared_mask == "published" and not site.simulated:
            raise Declined(
                Reason.TERMS, "'shared-mask' = 'published' releases a function of clean weights"
            )
        if terms.noise != "records" and not site.simulated:
            raise Declined(
                Reason.TERMS, "a personal part without noise = 'records' is trained without noise"
            )
        self._terms, self._task, self._round = terms, site.task, server_round
        self.split = split_of(terms, site.task, size)
        self.path = personal_state_path(site)
        self.state = load_state(self.path)
        self._site = site
        # Ledgers of simulations keep no payloads: a run that resumes has its last round done again.
        self._is_redone = site.simulated and not site.in_process
        if self._is_redone and self.state.server_round >= server_round:
            self.state = load_state(path_before(self.path))
        part, summed = self.state.part, self.state.summed
        place = self.split.own or slice(0, self.split.size)
        if (part is not None and part.shape != (place.stop - place.start,)) or (
            summed is not None and summed.shape != (size,)
        ):
            raise DataError(f"the personal part {self.path} is of another model; remove it")

    @property
    def part(self) -> Vector:
        """The site's own part before the round; at first the public one."""
        if self.state.part is not None:
            return self.state.part
        return initial_part(self._terms, self._task, self.split)

    def whole(self, shared: Vector) -> Vector:
        """Return the model to train, shape ``(D,)``."""
        return whole_model(self._terms, self._task, self.split, shared, self.state.part)

    def phases(self, steps: int, shared: Vector, train: Train) -> tuple[Phase, ...]:
        """Return what each step of the round trains; the steps of all phases are ``steps``.

        Args:
            steps: of the plan.
            shared: what the server sent.
            train: makes the noisy update of a phase from the round's start; it is called for a
                charged mask, whose step is one of the plan's, and for the published one.
        """
        terms, split = self._terms, self.split
        whole = slice(0, split.size)
        charged = int(terms.shared_mask == "charged-top-k")
        left = steps - charged
        if terms.personal_training == "alternate":
            if split.own is None:
                raise TermsError("'personal-training' = 'alternate' needs a 'personal-part'")
            first = min(terms.personal_steps or max(1, left // 2), left - 1)
            own = (Phase(first, split.own),) if first else ()
            return (*own, Phase(left - first, split.sent, self._mask(shared, left - first, train)))
        if terms.personal_training == "frozen":
            return (Phase(left, split.sent, self._mask(shared, left, train)),)
        return (Phase(left, whole, self._mask(shared, left, train)),)

    def sent(self, update: Vector) -> Vector:
        """Return what is sent of the noisy update of the whole model, shape ``(d,)``."""
        return np.ascontiguousarray(update[self.split.sent])

    def after(self, update: Vector, shared: Vector, step_std: float, steps: int) -> PersonalState:
        """Return the state after the round; it may be saved once the release is sealed.

        Args:
            update: the noisy one, of the whole model, shape ``(D,)``.
            shared: what the server sent, shape ``(d,)``.
            step_std: of the noise that one step adds to a coordinate.
            steps: that trained what is sent.
        """
        terms, before = self._terms, self.state
        part = None
        if self.split.moved is not None:
            step, place = np.zeros(self.split.size, np.float32), self.split.moved
            step[place] = np.float32(terms.personal_rate) * update[place]
            part = self.part + step
        elif self.split.own is not None:
            part = self.part + update[self.split.own]
        since = before.first_round or self._round
        state = PersonalState(self._round, before.rounds + 1, since, part)
        if not (terms.personal_shrink or terms.shared_mask == "noisy-updates"):
            return state
        sent = self.sent(update)
        return replace(
            state,
            summed=sent if before.summed is None else before.summed + sent,
            first=shared if before.first is None else before.first,
            variance=before.variance + steps * step_std**2,
        )

    def save(self, state: PersonalState) -> None:
        """Store the state after the round; called once the round's release is sealed.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._site.in_process:
            hold_state(self.path, state)
            return
        if self._is_redone:
            save_state(path_before(self.path), self.state)
        save_state(self.path, state, durable=not self._site.simulated)

    def _mask(self, shared: Vector, steps: int, train: Train) -> Mask | None:
        """Return the mask of the shared coordinates, shape ``(D,)``; None: all of them."""
        kind, size = self._terms.shared_mask, len(shared)
        if kind == "none":
            return None
        if kind == "random":
            # Drawn anew in each round, from no record.
            stream = self._site.streams(self._round, "mask").sampling
            size_of = np.frombuffer(stream.bytes(8 * size), np.uint64).astype(np.float64)
        elif kind == "global-magnitude":
            size_of = np.abs(shared)
        elif kind == "noisy-updates":
            if self.state.summed is None:
                return None  # in its first round a site has no noisy update yet
            size_of = np.abs(self.state.summed)
        else:  # charged-top-k: the noisy gradient of one step; published: of clean weights
            moved = train(Phase(1 if kind == "charged-top-k" else steps, self.split.sent))
            own = moved[self.split.sent]
            size_of = np.abs(own if kind == "charged-top-k" else shared + own)
        keep = top_share(size_of, self._terms.mask_share)
        mask = np.ones(self.split.size, np.bool_)
        mask[self.split.sent] = keep
        return mask


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
