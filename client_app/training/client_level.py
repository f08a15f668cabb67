"""A round whose unit is the whole client: plain local SGD, the update clipped as a whole.

FedHDP, Algorithm 1, the client's side. With ``noise = "client"`` the site adds Gaussian noise to
its clipped update itself, under its own plan: one Gaussian mechanism a round, without sampling. The
site is always there, so what is compared is its update from one set of records and from any other
one: both are as long as S at most, and one record can turn S into −S, so the noise is made for 2S.
With ``noise = "server"`` the clipped update leaves as it is, if the profile trusts the server; the
clipping bit is in it, for a clipped update has the norm S(1 − 1e-6) (``central_dp.py``).
"""

from __future__ import annotations

import numpy as np
import torch

from client_app.training.plain_sgd import Job, network_for, shuffled_batches
from client_app.site.site import Site
from client_app.training.trainer import pick_device, read_model, use_threads
from hdpfl_flower import wire
from hdpfl_flower.privacy.central_dp import clip_update
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import Declined
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.models.networks import flatten
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_flower.system.paths import available_cores
from hdpfl_flower.wire import Instructions

UPDATE = "update"
"""What the release's randomness is for."""


class ClientLevelTrainer:
    """As ``training.Trainer``: what can be refused is refused before a release is taken.

    Attributes:
        size: d, the number of trainable parameters.
    """

    def __init__(self, site: Site, instructions: Instructions) -> None:
        """Check the incoming model and read the records; raises as ``Trainer`` does."""
        terms, training = instructions.terms, site.profile.training
        self._site, self._instructions = site, instructions
        self._start = flatten(read_model(site, instructions))
        self.size = len(self._start)
        use_threads(training.torch_threads or available_cores())
        device = pick_device(training.device)
        self._network = network_for(terms.model, task_for(terms), device)
        self._records = site.training_records()

    def job(self, stream: RandomStream) -> Job:
        """Return the local SGD of this round, its batches drawn from ``stream``."""
        terms, records = self._instructions.terms, self._records
        batch_size = self._site.profile.training.batch_size
        batches = shuffled_batches(
            len(records), batch_size, terms.local_epochs, terms.local_steps, stream
        )
        return Job(self._start, records, tuple(batches))

    def run(self, plan: Plan | None) -> bytes:
        """Return the payload of this round: the clipped update, noised by ``plan`` if there is one.

        Guarantees:
            Before the noise the payload is no longer than S·(1 − 1e-6), so any change of the
            site's records moves it by less than 2S, for which a plan's noise is made; an update
            that is not finite counts as none. Without a plan the server adds the noise, and one
            client more or less moves its sum by less than S.

        Raises:
            Declined: no plan, though the terms do not leave the noise to the server.
        """
        terms, server_round = self._instructions.terms, self._instructions.server_round
        if plan is None and terms.noise != "server":
            raise Declined("terms: an update without noise is for noise = 'server' alone")
        streams = self._site.streams(server_round, UPDATE)
        end = self._site.trained.pop((self._instructions.digest, UPDATE), None)
        if end is None:
            end = self._network.train(self.job(streams.sampling), terms.learning_rate)
        update = clip_update(end.astype(np.float64) - self._start, terms.clip_norm)
        if plan is not None:
            std = plan.round(server_round, terms.clip_norm).noise_std
            update = add_noise(torch.from_numpy(update), std, streams.noise).numpy()
        return wire.encode_update(update.astype(np.float32))
