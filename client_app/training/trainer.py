"""One round of DP-SGD at a site: models, engine, records.

The constructor refuses whatever can be refused without a record, before a release is reserved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import RecordDict

from client_app.site.site import Site, check_payload
from client_app.work import own_round
from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.engines.dpsgd import Course, Phase, pull_share, rehearsal_size, settle, train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.engines.engines import Engine, rehearse
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.models.networks import Arrays, flatten
from hdpfl_flower.models.parts import parts_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.plan import Plan, RoundPlan
from hdpfl_flower.releases.of_run import needs_head
from hdpfl_flower.releases.rounds import Update
from hdpfl_flower.system.devices import available_cores, is_out_of_memory, pick_device
from hdpfl_flower.wire import Instructions

if TYPE_CHECKING:
    from client_app.site.personal_state import PersonalState

Vector = npt.NDArray[np.float32]


class Trainer:
    """One round of DP-SGD: an engine, and the model to start from.

    Attributes:
        models: of the message, checked.
        size: d, the number of trainable parameters.
        start: the model to train, shape ``(d,)``; the message's first until :meth:`choose`.
        engine: of the clipped sums.
        personal: round of a site with a vector of its own; else None.
        pull: λ and the model that each step is pulled to; None: no pull.
        offset: movement of the whole round; None: none.
    """

    def __init__(self, site: Site, instructions: Instructions) -> None:
        """Check the incoming models and prepare the engine, without records.

        Raises:
            Declined: the message is larger than the policy allows, or has an offset where a part
                of the model stays here.
            WireError: names, shapes or types differ, or a number is not finite.
            ModelError: the model cannot be trained record by record.
            DataError: the schema is wrong.
            TermsError: the pull is too large for the learning rate.
        """
        terms, training = instructions.terms, site.profile.training
        self._site, self._instructions = site, instructions
        self.models: Sequence[Arrays] = read_models(site, instructions)
        size = sum(array.size for array in self.models[0].values())
        if needs_head(terms):
            parts_of(terms.model, site.task)  # of the tuning after the last round, too
        self.personal = own_round(site, instructions.server_round, size)
        self.choose(0)
        self.size = len(self.start)
        self._after: PersonalState | None = None
        use_threads(training.torch_threads or available_cores())
        device = pick_device(training.device)
        with enough_memory("physical-batch"):
            self.engine, self._physical = engine_at(site.profile, terms.model, site.task, device)
            if not site.simulated:
                # Here, before a release is reserved: a failure for want of memory costs no budget.
                settle(self.engine, training.batch_size, self._physical)
                rehearse(self.engine, rehearsal_size(training.batch_size, self._physical))

    def choose(self, index: int) -> None:
        """Start from model ``index`` of the message; the same request, whichever it is."""
        site, instructions, terms = self._site, self._instructions, self._instructions.terms
        self.start = flatten(self.models[index])
        anchor = flatten(self.models[1]) if instructions.use == wire.PULL else self.start
        pull = terms.work.pull_factor
        self.pull = (pull, self._whole(anchor)) if pull else None
        self.offset = flatten(self.models[1]) if instructions.use == wire.OFFSET else None
        if self.offset is not None and self.personal is not None:
            raise Declined(Reason.TERMS, "an offset is not possible with personal parts or masks")
        pull_share(self.pull, terms.learning_rate)
        # Here, not after the training: a wrong model in the memory is refused before a release.
        self._direction = None
        if instructions.project is not None:
            from client_app.training.last_step import last_step

            self._direction = last_step(site.memory, instructions, self.start, site.layout)

    def run(self, plan: Plan | None) -> bytes:
        """Return the payload of this round: the noisy update, or its one number, encoded.

        Raises:
            Declined: without a plan; nothing says how much noise there must be.
        """
        if plan is None:
            raise Declined(Reason.TERMS, "no plan pays for an update")
        terms, server_round = self._instructions.terms, self._instructions.server_round
        round_plan, personal = plan.round(server_round, terms.clip_norm), self.personal
        course = Course(pull=self.pull, offset=self.offset)
        if personal is not None:
            planned = personal.course(
                round_plan.steps.count, self.start, lambda phase: self._select(phase, round_plan)
            )
            course = replace(planned, pull=planned.pull or self.pull)
            steps_left = round_plan.steps.count - terms.work.extra_steps
            round_plan = replace(round_plan, steps=replace(round_plan.steps, count=steps_left))
        # Stacked training of a simulation may have left it for this very request.
        update = self._site.trained(self._instructions.digest, Update.release)
        if update is None:
            update = self._train(round_plan, Update.release, course)
        if personal is not None:
            step_std = terms.learning_rate * round_plan.noise_std / round_plan.divisor
            # The last phase trains the sent part, whichever phases precede it.
            steps = course.phases[-1].steps if course.phases else round_plan.steps.count
            self._after = personal.after(update, self.start, step_std, steps)
            update = personal.sent(update)
        # After the noise: a function of the noisy update costs nothing.
        if self._direction:
            return wire.encode_update(self._direction.project(update))
        return wire.encode_update(update)

    def reply(self, payload: bytes, choice: bytes | None) -> RecordDict:
        """Return the reply with the sealed update and choice."""
        return wire.write_update(payload, self.size, choice)

    def keep(self, *, replayed: bool, plan: Plan | None) -> None:
        """Store the site's own part after the round; called once the release is sealed.

        Args:
            replayed: whether the release was sealed by an earlier message: the part is left alone,
                but where a simulation's process died before it was stored.
            plan: of the run.
        """
        personal = self.personal
        if personal is None or personal.state.server_round >= self._instructions.server_round:
            return
        if replayed and self._site.simulated:
            self.run(plan)  # seeded: the same update, and the part that belongs to it
        if self._after is not None:
            personal.save(self._after)

    def _whole(self, shared: Vector) -> Vector:
        return shared if self.personal is None else self.personal.whole(shared)

    def _select(self, phase: Phase, plan: RoundPlan) -> Vector:
        """Return the update that selects a mask: noisy and charged, or clean in a simulation."""
        clean = self._instructions.terms.work.reads_clean_weights
        plan = replace(
            plan,
            steps=replace(plan.steps, count=phase.steps),
            noise_std=0.0 if clean else plan.noise_std,
        )
        return self._train(plan, "mask", Course((phase,)))

    def _train(self, plan: RoundPlan, kind: str, course: Course) -> Vector:
        site, instructions = self._site, self._instructions
        return train(
            self.engine,
            self._whole(self.start),
            site.training_units(),
            plan,
            instructions.terms.learning_rate,
            site.streams(instructions.server_round, kind),
            self._physical,
            pull=course.pull,
            offset=course.offset,
            phases=course.phases,
        )


def engine_at(profile: Profile, spec: str, task: Task, device: str) -> tuple[Engine, int]:
    """Return the engine of a site's DP-SGD, and how many units it may hold in memory at once.

    Raises:
        ModelError, InstallationError: as :func:`engine_for`.
    """
    training, most = profile.training, profile.data.records_per_unit if profile.data else 1
    engine = engine_for(spec, task, training.engine, device, most)
    return engine, max(1, training.physical_batch // most)


@contextlib.contextmanager
def enough_memory(key: str) -> Iterator[None]:
    """Decline where memory ends, naming the profile's key that lowers the need of it."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = f"a batch does not fit into memory; lower 'training.{key}'"
        raise Declined(Reason.PROFILE, reason) from None


def read_model(site: Site, instructions: Instructions) -> Arrays:
    """Return the one model of a test, or of the end of a run; as :func:`read_models`."""
    return read_models(site, instructions)[0]


def read_models(site: Site, instructions: Instructions) -> list[Arrays]:
    """Return every model of a message, checked.

    Args:
        site: that it is sent to.
        instructions: of the message.

    Raises:
        Declined: the message is larger than the policy allows.
        WireError: names, shapes or types differ, or a number is not finite.
        ModelError: the terms name no model that can be built.
    """
    records = instructions.models
    # Before its models take memory.
    sent = sum(len(array.data) for record in records for array in record.values())
    check_payload(site.profile, sent / 1e6)
    return [wire.read_model(record, site.layout) for record in records]


def use_threads(count: int) -> None:
    """Let torch use ``count`` threads."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
