"""Round with the client as unit: plain SGD, clipped update.

FedHDP, Algorithm 1, the client's side. With ``noise = "client"`` the site adds Gaussian noise to
its clipped update itself, under its own plan: one Gaussian mechanism a round, without sampling. The
site takes part with any records, so neighbours are its updates from one set of records and from any
other: each has a norm of at most S, and one record can turn S into −S, so the noise is made for 2S.
With ``noise = "server"`` the clipped update leaves as it is, if the profile trusts the server; the
clipping bit is in it, for a clipped update has the norm S(1 − 1e-6) (``clipped_update.py``).

A personal part trains here without any noise, as CENTAUR's code does it: at this unit that is
private, for all that leaves is one update, clipped as a whole and noised in every coordinate,
whichever part stays and whatever mask selected it. At the level of a record it is not, and the
part itself is the site's alone. Simulated sites do it, others decline
(``client_app/work/base.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from flwr.app import RecordDict

from client_app.site.personal_state import PersonalState
from client_app.site.site import Site
from client_app.training.plain_sgd import (
    LocalJob,
    Vector,
    network_for,
    shuffled_batches,
    train_or_stay,
)
from client_app.training.trainer import enough_memory, read_models, use_threads
from client_app.work import own_round
from hdpfl_flower import wire
from hdpfl_flower.engines.dpsgd import Phase
from hdpfl_flower.errors import Declined, Reason
from hdpfl_flower.models.networks import Arrays, flatten
from hdpfl_flower.privacy.clipped_update import clip_update
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.releases.rounds import Update
from hdpfl_flower.system.devices import available_cores, present
from hdpfl_flower.wire import Instructions


class ClientLevelTrainer:
    """One round of plain local SGD, its whole update clipped.

    Attributes:
        models: of the message, checked.
        size: d, the number of trainable parameters.
        start: the model to train, shape ``(d,)``; the message's first until :meth:`choose`.
    """

    def __init__(self, site: Site, instructions: Instructions) -> None:
        """Check the message's models; raises as ``Trainer`` does, and declines an offset."""
        training = site.profile.training
        # The clipping of the whole update would eat an added offset.
        if instructions.use == wire.OFFSET:
            raise Declined(Reason.TERMS, "an offset is possible only with noise = 'records'")
        self._site, self._instructions = site, instructions
        self.models: Sequence[Arrays] = read_models(site, instructions)
        self.choose(0)
        self.size = len(self.start)
        self._personal = own_round(site, instructions.server_round, self.size)
        self._after: PersonalState | None = None
        use_threads(training.torch_threads or available_cores())
        device = present(training.device)
        with enough_memory("batch-size"):
            self._network = network_for(site.terms.model, site.task, device)
            if not site.simulated:
                self._network.rehearse(training.batch_size)

    def choose(self, index: int) -> None:
        """Start from model ``index`` of the message; the same request, whichever it is."""
        self.start = flatten(self.models[index])

    def job(self, stream: RandomStream) -> LocalJob:
        """Return the local SGD of this round, its batches drawn from ``stream``."""
        terms, records = self._instructions.terms, self._site.training_records()
        batch_size = self._site.profile.training.batch_size
        # Not Poisson batches: the account is of the whole clipped update, however it was trained.
        batches = tuple(
            shuffled_batches(
                len(records), batch_size, terms.local_epochs, terms.local_steps, stream
            )
        )
        whole, personal = LocalJob(self.start, records, batches), self._personal
        if personal is None:
            return self._pulled(whole)
        whole = replace(whole, start=personal.whole(self.start))
        if not batches:
            return whole  # without records there is no step to divide

        def clean(phase: Phase) -> Vector:
            """Return the update that the published mask is made of."""
            some = replace(whole, batches=batches[: phase.steps], phases=(phase,))
            return train_or_stay(self._network, some, terms.learning_rate) - whole.start

        course = personal.course(len(batches), self.start, clean)
        return self._pulled(replace(whole, phases=course.phases))

    def _pulled(self, job: LocalJob) -> LocalJob:
        """Return the job with the pull to the update's origin."""
        pull = self._instructions.terms.work.pull_factor
        # To 0 where a mask is: else the pull would move masked coordinates.
        return replace(job, pull=(pull, job.first)) if pull else job

    def run(self, plan: Plan | None) -> bytes:
        """Return the round's payload: the clipped update, noised if planned.

        Guarantees:
            Before the noise the payload is no longer than S·(1 − 1e-6), so any change of the
            site's records moves it by less than 2S, for which a plan's noise is made; an update
            that is not finite, or a training that raises, counts as none. Without a plan the server
            adds the noise, and one client more or less moves its sum by less than S.

        Raises:
            Declined: no plan, though the terms do not leave the noise to the server.
        """
        terms, server_round = self._instructions.terms, self._instructions.server_round
        # Without this a mistake in a caller would release an update without any noise.
        if plan is None and terms.source.site_plans:
            raise Declined(
                Reason.TERMS, "an update without noise is possible only with noise = 'server'"
            )
        streams = self._site.streams(server_round, Update.release)
        # Stacked training of a simulation may have left it for this very request.
        end, start = self._site.trained(self._instructions.digest, Update.release), self.start
        if end is None:
            job = self.job(streams.sampling)
            end, start = train_or_stay(self._network, job, terms.learning_rate), job.first
        # In float64: a norm that float32 sums fall short of would let an update pass S.
        moved = end.astype(np.float64) - start
        if self._personal is not None:
            # The site's own part is neither clipped nor noised, and never sent.
            self._after = self._personal.after(moved.astype(np.float32), self.start, 0.0, 0)
            moved = moved[self._personal.work.sent]
        update = clip_update(moved, terms.clip_norm)
        if plan is not None:
            # Noise comes after the clipping, in float64; only the sum of both is rounded to
            # float32.
            std = plan.round(server_round, terms.clip_norm).noise_std
            update = add_noise(torch.from_numpy(update), std, streams.noise).numpy()
        return wire.encode_update(update.astype(np.float32))

    def reply(self, payload: bytes, choice: bytes | None) -> RecordDict:
        """Return the reply with the sealed update and choice."""
        return wire.write_update(payload, self.size, choice)

    def keep(self, *, replayed: bool, plan: Plan | None) -> None:
        """Store the site's own part after the round; as ``Trainer.keep``."""
        personal = self._personal
        if personal is None or personal.state.server_round >= self._instructions.server_round:
            return
        if replayed and self._site.simulated:
            self.run(plan)  # seeded: the same update, and the part that belongs to it
        if self._after is not None:
            personal.save(self._after)
