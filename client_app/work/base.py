"""Local work at a site: model, steps, the site's own vector.

A kind of local work is a class here and its settings in ``hdpfl_flower/work/``; :class:`OwnRound`
reads and stores the vector that a site keeps, whichever kind moves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

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
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.engines.dpsgd import Course, Phase
from hdpfl_flower.errors import DataError, Declined, Reason
from hdpfl_flower.models.task import Task
from hdpfl_flower.releases.of_run import sums_updates
from hdpfl_flower.work import Work

Vector = npt.NDArray[np.float32]
Train = Callable[[Phase], Vector]
"""Steps of a phase → the noisy update of that many steps from the round's start, shape ``(D,)``."""


class LocalWork:
    """Plain work: steps on the whole model, which is sent.

    Attributes:
        settings: of the run's local work.
        size: D, the numbers of the whole model.
        sent: range of the d numbers that travel.
        own_size: numbers of the site's own vector; 0: none.
    """

    settings: Work
    own_size: int = 0

    def __init__(self, terms: RunTerms, task: Task, sent: int) -> None:
        """Prepare the coordinates; ``sent`` is their number d.

        Raises:
            ModelError: the model has no head apart from a body.
        """
        self.terms, self.task, self.settings = terms, task, terms.work
        self.size, self.sent = sent, slice(0, sent)

    def first(self) -> Vector:
        """Return the public vector that every site's own begins with."""
        return np.zeros(self.own_size, np.float32)

    def whole(self, shared: Vector, vector: Vector) -> Vector:
        """Return the site's own model, shape ``(D,)``."""
        del vector
        return shared

    def course(self, round_: OwnRound, steps: int, shared: Vector, train: Train) -> Course:
        """Return the steps of a round; ``train`` makes the noisy update of a phase."""
        del round_, shared, train
        return Course((Phase(steps, slice(0, self.size)),))

    def moved(self, vector: Vector, update: Vector) -> Vector:
        """Return the site's own vector after a noisy update of the whole model."""
        del update
        return vector


class OwnRound:
    """Round of a site with a vector of its own.

    Attributes:
        work: of the run.
        site: of the round.
        number: of the round.
        state: before the round.
        path: of its file.
    """

    def __init__(self, work: LocalWork, site: Site, server_round: int) -> None:
        """Read the site's state, without its records.

        Raises:
            Declined: there is no folder for the state, or the terms are for simulations alone.
            DataError: the state is damaged, or of another model.
        """
        terms = site.terms
        if terms.work.reads_clean_weights and not site.simulated:
            raise Declined(
                Reason.TERMS, "'work.mask' = 'published' releases a function of clean weights"
            )
        if not terms.source.noises_parts and not site.simulated:
            raise Declined(
                Reason.TERMS, "a personal part without noise = 'records' is trained without noise"
            )
        self.work, self.site, self.number = work, site, server_round
        self.path = personal_state_path(site)
        self.state = load_state(self.path)
        # Ledgers of simulations keep no payloads: a run that resumes has its last round done again.
        self._is_redone = site.simulated and not site.in_process
        if self._is_redone and self.state.server_round >= server_round:
            self.state = load_state(path_before(self.path))
        vector, summed = self.state.part, self.state.summed
        sent = work.sent.stop - work.sent.start
        if (vector is not None and vector.shape != (work.own_size,)) or (
            summed is not None and summed.shape != (sent,)
        ):
            raise DataError(
                f"the personal part {self.path} does not fit the run's model; remove it"
            )

    @property
    def own(self) -> Vector:
        """The site's own vector before the round; at first the public one."""
        return self.work.first() if self.state.part is None else self.state.part

    def whole(self, shared: Vector) -> Vector:
        """Return the model to train, shape ``(D,)``."""
        return self.work.whole(shared, self.own)

    def course(self, steps: int, shared: Vector, train: Train) -> Course:
        """Return the steps of the round, ``steps`` in number with those that ``train`` takes."""
        return self.work.course(self, steps, shared, train)

    def sent(self, update: Vector) -> Vector:
        """Return the sent part of the noisy update, shape ``(d,)``."""
        return np.ascontiguousarray(update[self.work.sent])

    def after(self, update: Vector, shared: Vector, step_std: float, steps: int) -> PersonalState:
        """Return the state after the round, to save once sealed.

        Args:
            update: the noisy one, of the whole model, shape ``(D,)``.
            shared: the server's model, shape ``(d,)``.
            step_std: of the noise that one step adds to a coordinate.
            steps: that trained the sent part.
        """
        before = self.state
        vector = self.work.moved(self.own, update) if self.work.own_size else None
        since = before.first_round or self.number
        state = PersonalState(self.number, before.rounds + 1, since, vector)
        if not sums_updates(self.site.terms):
            return state
        sent = self.sent(update)
        return replace(
            state,
            summed=sent if before.summed is None else before.summed + sent,
            first=shared if before.first is None else before.first,
            variance=before.variance + steps * step_std**2,
        )

    def save(self, state: PersonalState) -> None:
        """Store the state after the round's release is sealed.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.site.in_process:
            hold_state(self.path, state)
            return
        if self._is_redone:
            save_state(path_before(self.path), self.state)
        save_state(self.path, state, durable=not self.site.simulated)
