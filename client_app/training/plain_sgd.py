"""Plain local SGD without clipping or noise: never sent as is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from hdpfl_flower.engines.allocator import keep_freed_memory
from hdpfl_flower.engines.dpsgd import Phase
from hdpfl_flower.errors import TermsError, is_ctrl_c
from hdpfl_flower.models.losses import training_loss
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.row_batches import blank, rows_on
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.system.printable import site_log

log = site_log()

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, repr=False)
class LocalJob:
    """One client's local SGD.

    Attributes:
        start: the parameters to start from, shape ``(d,)``.
        records: the client's.
        batches: rows of each step.
        pull: (λ, θ): each step also moves by −η·λ·(own − θ) (Ditto).
        phases: which coordinates each step trains, a step a batch, in this order; empty: all of
            them in every step.
    """

    start: Vector
    records: Records
    batches: tuple[npt.NDArray[np.int64], ...]
    pull: tuple[float, Vector] | None = None
    phases: tuple[Phase, ...] = ()

    @property
    def first(self) -> Vector:
        """Origin of the update: ``start``, 0 under a mask."""
        first = self.start.copy()
        for phase in self.phases:
            if phase.mask is not None:
                first[phase.place] *= phase.mask[phase.place]
        return first

    def trained(self) -> Iterator[Phase | None]:
        """Yield each step's trained coordinates; None: all.

        Raises:
            TermsError: the phases have other steps than there are batches.
        """
        if self.phases and sum(phase.steps for phase in self.phases) != len(self.batches):
            raise TermsError("the phases of a round have other steps than its local SGD")
        yield from (phase for phase in self.phases for _ in range(phase.steps))
        if not self.phases:
            yield from (None,) * len(self.batches)


class Network:
    """A model with all parameters as views of one vector, for steps on a batch's mean."""

    def __init__(self, spec: str, task: Task, device: str) -> None:
        """Build the model on ``device``; raises ``ModelError`` as ``build_model`` does."""
        keep_freed_memory()
        self.model, self.task = build_model(spec, task, seed=0).to(device).train(), task
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.theta = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        start = 0
        for parameter in self._parameters:
            parameter.data = self.theta[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def rehearse(self, batch: int) -> None:
        """Run two steps of made-up batches, to fail before data is touched."""
        x, y = blank(self.task, batch, self.theta.device)
        for rows in (x, torch.ones_like(x)):
            torch.autograd.grad(training_loss(self.task, self.model(rows), y), self._parameters)

    def train(self, job: LocalJob, learning_rate: float) -> Vector:
        """Return the parameters after a step a batch with the rate η, shape ``(d,)``."""
        device = self.theta.device
        features = torch.from_numpy(job.records.features)
        targets = torch.from_numpy(job.records.targets)
        self.theta.copy_(torch.from_numpy(job.start.copy()))
        pull = job.pull
        anchor = torch.from_numpy(pull[1].copy()).to(device) if pull else self.theta
        for rows, phase in zip(job.batches, job.trained(), strict=True):
            indices = torch.from_numpy(rows)
            x, y = rows_on(features, indices, device), rows_on(targets, indices, device)
            keep = self._keep(phase)
            # The mean over the true batch: all results of it are clipped, or stay at the site.
            loss = training_loss(self.task, self.model(x), y) / len(rows)
            gradients = torch.autograd.grad(loss, self._parameters)
            # Before the gradient's step, as in dpsgd.train: both terms are taken at the same θ.
            if phase is None:
                if pull:
                    self.theta.lerp_(anchor, learning_rate * pull[0])
                for parameter, gradient in zip(self._parameters, gradients, strict=True):
                    parameter.data.sub_(gradient, alpha=learning_rate)
                continue
            place = phase.place
            step = torch.cat([gradient.reshape(-1) for gradient in gradients])[place]
            if keep is not None:
                step.mul_(keep)
            if pull:
                self.theta[place].lerp_(anchor[place], learning_rate * pull[0])
            self.theta[place].sub_(step, alpha=learning_rate)
        end: Vector = self.theta.cpu().numpy().copy()
        return end

    def _keep(self, phase: Phase | None) -> torch.Tensor | None:
        """Return which coordinates of the phase's range are trained; the others are set to 0."""
        if phase is None or phase.mask is None:
            return None
        keep = torch.from_numpy(phase.mask[phase.place].copy()).to(self.theta.device)
        self.theta[phase.place].mul_(keep)
        return keep


def train_or_stay(network: Network, job: LocalJob, learning_rate: float) -> Vector:
    """Return the parameters after ``job``; its origin where the model raises, shape ``(d,)``.

    For whatever leaves, or decides how a message is answered. The update is then 0, which is within
    every bound; a failure in its place would show, without noise, that some record made the model
    raise. A log line names the kind of the exception.
    """
    try:
        return network.train(job, learning_rate)
    except BaseException as reason:
        if is_ctrl_c(reason):
            raise
        log.warning("the model raised %s in training; it stays", type(reason).__name__)
        return job.first


@lru_cache(maxsize=4)
def network_for(spec: str, task: Task, device: str) -> Network:
    """Return the network of ``spec``, kept in the process."""
    return Network(spec, task, device)


def shuffled_batches(
    count: int, batch_size: int, epochs: int, steps: int, stream: RandomStream
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the rows of each step: every record once an epoch, in a new order each time.

    Args:
        count: records, 0 yields nothing.
        batch_size: rows of a step; the last one of an epoch may have fewer.
        epochs: K.
        steps: if not 0, so many steps in place of whole epochs.
        stream: with the order.
    """
    done = 0
    while count and (done < steps if steps else epochs > 0):
        epochs -= 1
        # A random order: 64 fresh bits a record, sorted.
        order = np.argsort(np.frombuffer(stream.bytes(8 * count), np.uint64), kind="stable")
        for first in range(0, count, batch_size):
            if steps and done >= steps:
                return
            done += 1
            yield order[first : first + batch_size]
