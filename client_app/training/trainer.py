"""One round at a site, from the server's message to the payload that is sealed."""

from __future__ import annotations

import torch

from client_app.training.dpsgd import pull_share, rehearsal_size, settle, train
from client_app.training.engine_choice import engine_for
from client_app.training.engines import rehearse
from client_app.training.last_step import last_step
from client_app.site.site import Site
from hdpfl_flower import wire
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import Declined
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.models.networks import Arrays, flatten, layout_of, megabytes_of
from hdpfl_flower.system.paths import available_cores
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.wire import Instructions

TOO_LARGE = "policy: the model is larger than 'policy.max-payload-mb'"


class Trainer:
    """Everything that can be refused is refused here, before a release is taken.

    Attributes:
        size: d, the number of trainable parameters.
    """

    def __init__(self, site: Site, instructions: Instructions) -> None:
        """Check the incoming model, prepare the engine and read the records.

        Raises:
            Declined: the message is larger than the policy allows.
            WireError: names, shapes or types differ, or a number is not finite.
            ModelError: the model cannot be trained record by record.
            DataError: the site's data cannot be read as a whole.
            TermsError: ``prox-lambda`` is too large for the learning rate.
        """
        terms, training = instructions.terms, site.profile.training
        self._site, self._instructions = site, instructions
        first, *others = read_models(site, instructions)
        self._start = flatten(first)
        anchor = flatten(others[0]) if instructions.use == wire.PULL else self._start
        self._pull = (terms.pull, anchor) if terms.pull else None
        pull_share(self._pull, terms.learning_rate)
        layout = allowed_layout(site.profile, terms)
        self._direction = last_step(site.memory, instructions, self._start, layout)
        self.size = len(self._start)
        use_threads(training.torch_threads or available_cores())
        device = pick_device(training.device)
        self._engine = engine_for(terms.model, task_for(terms), training.engine, device)
        if not site.simulated:
            settle(self._engine, training.batch_size, training.physical_batch)
            rehearse(self._engine, rehearsal_size(training.batch_size, training.physical_batch))
        self._records = site.training_records()

    def run(self, plan: Plan) -> bytes:
        """Return the payload of this round: the noisy update, or its one number, encoded."""
        terms, server_round = self._instructions.terms, self._instructions.server_round
        update = train(
            self._engine,
            self._start,
            self._records,
            plan.round(server_round, terms.clip_norm),
            terms.learning_rate,
            self._site.streams(server_round, "update"),
            self._site.profile.training.physical_batch,
            pull=self._pull,
        )
        # After the noise: a function of the noisy update costs nothing.
        return wire.encode_update(self._direction.project(update) if self._direction else update)


def read_model(site: Site, instructions: Instructions) -> Arrays:
    """Return the model of a message, checked; raises as :class:`Trainer` does."""
    return read_models(site, instructions)[0]


def read_models(site: Site, instructions: Instructions) -> list[Arrays]:
    """Return every model of a message, checked; raises as :class:`Trainer` does."""
    limit, records = site.profile.policy.max_payload_mb * 1e6, instructions.models
    if sum(len(array.data) for record in records for array in record.values()) > limit:
        raise Declined(TOO_LARGE)
    layout = allowed_layout(site.profile, instructions.terms)
    return [wire.read_model(record, layout) for record in records]


def allowed_layout(profile: Profile, terms: RunTerms) -> Arrays:
    """Return the names and shapes of the model that ``terms`` name, without their memory.

    Every network of a site is built after this: the terms are the server's text.

    Raises:
        Declined: the model is larger than the policy allows.
        ModelError: the terms name no model that can be built.
    """
    task = task_for(terms)
    if megabytes_of(terms.model, task) > profile.policy.max_payload_mb:
        raise Declined(TOO_LARGE)
    return layout_of(terms.model, task)


def use_threads(count: int) -> None:
    """Let torch use ``count`` threads."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def pick_device(name: str) -> str:
    """Return ``name``, or for ``auto`` the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name
