"""Stacked record-level DP-SGD of simulated clients, linear layers and ReLUs.

The clients are a leading axis, as in ``stacked_sgd.py``: each has its own parameters, records,
Poisson batches, C, z, divisor and streams. A record's gradient in a linear layer is δ ⊗ [a, 1], so
its norm is a product of norms (``engines.py``), and the clipped sums of all clients are one batched
product a layer. Batches and noise are bit by bit those of ``dpsgd.train``. Sums are not: a batched
product adds in another order, which changes an update by less than 1e-6 of its norm.

For simulations alone. Each record is clipped to C·(1 + 1e-5) whatever its values, and one that is
not finite adds zero, as everywhere. But a batched product may round a record's numbers differently
beside other records or other clients; that they are the record's own to the last bit is proven for
the engines of deployed sites alone (``hdpfl_flower/models/row_batches.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from client_app.training.plain_sgd import Vector
from hdpfl_flower.engines.dpsgd import Pull, pull_share
from hdpfl_flower.engines.engines import outer_squared_norms
from hdpfl_flower.models.losses import output_gradient, weighted
from hdpfl_flower.models.row_batches import exact_arithmetic
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_tools.simulation.stacked_noise import add_noises
from hdpfl_tools.simulation.stacked_sgd import Stack

_AT_ONCE = 2**19
"""Parameters of the clients that step together: 2 MiB. A step's calls cost as much as 3 clients."""
_INPUTS = 2**22
"""Features of the records that are in memory at once: 16 MiB."""


@dataclass(frozen=True, repr=False)
class PrivateJob:
    """One client's round of DP-SGD.

    Attributes:
        start: the parameters to start from, float32, shape ``(d,)``.
        records: the client's.
        plan: its steps, q, C, noise and divisor.
        streams: its release's randomness, used up.
        pull: as ``dpsgd.train`` has it.
    """

    start: Vector
    records: Records
    plan: RoundPlan
    streams: ReleaseStreams
    pull: Pull | None = None


def train_stacked(
    stack: Stack, jobs: Sequence[PrivateJob], learning_rate: float, physical_batch: int
) -> list[Vector]:
    """Return each client's noisy update of one round, local − global, shape ``(d,)``, in order.

    Args:
        stack: the model.
        jobs: the clients'; they may differ in everything but the model.
        learning_rate: η.
        physical_batch: records of a client in memory at once.

    Guarantees:
        Each update is the composition of Gaussian mechanisms that ``dpsgd.train`` describes, under
        the client's own plan, from its own records and streams alone.

    Raises:
        TermsError: a pull λ that ``pull_share`` refuses.
    """
    by_job: dict[int, Vector] = {}
    # Clients with batches alike are together: a shorter batch is filled up with rows of weight 0.
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i].plan.divisor, jobs[i].plan.steps.count))
    inputs = stack.layers[0].inputs
    while order:
        widest = max(1, min(physical_batch, math.ceil(jobs[order[-1]].plan.divisor)))
        count = max(min(_AT_ONCE // stack.size, _INPUTS // (inputs * widest)), 1)
        # As many parts, and equal: one of a few clients takes as many calls as a full one.
        count = math.ceil(len(order) / math.ceil(len(order) / count))
        order, some = order[:-count], order[-count:]
        # The most steps first: in every step, those with steps left are the first ones.
        some.sort(key=lambda i: -jobs[i].plan.steps.count)
        with exact_arithmetic():
            updates = _StackedRound(stack, [jobs[i] for i in some], physical_batch).run(
                learning_rate
            )
        by_job.update(zip(some, updates, strict=True))
    return [by_job[i] for i in range(len(jobs))]


class _StackedRound:
    """Round of some clients, sorted by descending steps."""

    def __init__(self, stack: Stack, jobs: Sequence[PrivateJob], physical_batch: int) -> None:
        self._stack, self._jobs = stack, jobs
        inputs = stack.layers[0].inputs
        self._features = [job.records.features.reshape(len(job.records), inputs) for job in jobs]
        self._batches = [_batches(job) for job in jobs]
        largest = max((len(rows) for batch in self._batches for rows in batch), default=0)
        self._width = max(min(largest, physical_batch), 1)
        # Filled again in every step. The rest of an earlier one counts as often as zeros do.
        size = len(jobs) * self._width
        self._x = np.zeros(size * inputs, np.float32)
        self._y = np.zeros(size, jobs[0].records.targets.dtype)
        self._clip_norms = self._column([job.plan.clip_norm for job in jobs])

    def run(self, learning_rate: float) -> npt.NDArray[np.float32]:
        """Return the updates, shape ``(n, d)``."""
        jobs, stack = self._jobs, self._stack
        theta = stack.put(np.stack([job.start for job in jobs]))
        totals = torch.empty_like(theta)
        # The divisor is a client's expected batch b, a constant.
        rates = self._column([learning_rate / job.plan.divisor for job in jobs])
        shares = [pull_share(job.pull, learning_rate) for job in jobs]
        anchors = pulls = None
        if any(shares):
            anchors = stack.put(np.stack([job.pull[1] if job.pull else job.start for job in jobs]))
            pulls = self._column(shares)
        for step in range(jobs[0].plan.steps.count):
            active = sum(job.plan.steps.count > step for job in jobs)
            active_theta, total = theta[:active], totals[:active]
            self._put_clipped_sums(total, active_theta, step)
            # In every step and for every client and batch: as in dpsgd.train.
            add_noises(
                total,
                [job.plan.noise_std for job in jobs[:active]],
                [job.streams.noise for job in jobs[:active]],
            )
            if anchors is not None and pulls is not None:
                active_theta.lerp_(anchors[:active], pulls[:active])
            active_theta.addcmul_(total, rates[:active], value=-1)
        updates: npt.NDArray[np.float32] = theta.cpu().numpy()
        for update, job in zip(updates, jobs, strict=True):
            np.subtract(update, job.start, out=update)
        return updates

    def _put_clipped_sums(self, total: torch.Tensor, theta: torch.Tensor, step: int) -> None:
        """Replace each row by the client's clipped gradient sum of its batch in ``step``."""
        batches = [batch[step] for batch in self._batches[: len(theta)]]
        for first in range(0, max(*map(len, batches), 1), self._width):
            parts = [rows[first : first + self._width] for rows in batches]
            x, y, counted = self._rows_of(parts)
            inputs, residual = self._stack.forward(theta, x, y, _output_gradient)
            deltas = self._stack.backward(theta, inputs, residual)
            self._add(total, inputs, deltas, counted, anew=first == 0)

    def _add(
        self,
        total: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        deltas: Sequence[torch.Tensor],
        counted: torch.Tensor,
        *,
        anew: bool,
    ) -> None:
        """Add Σⱼ gⱼ · min(1, C/‖gⱼ‖) of each client, over the rows that count, shape ``(n, b)``.

        ``anew``: to zeros, whatever ``total`` holds.
        """
        layers = self._stack.layers
        squared_norm, *others = (
            outer_squared_norms(delta.flatten(0, 1), a.flatten(0, 1), layer.bias)
            for layer, a, delta in zip(layers, inputs, deltas, strict=True)
        )
        for other in others:
            squared_norm.add_(other)
        squared_norm = squared_norm.view_as(counted)
        # Sums of squares: one that is not finite leaves no finite sum. Too large a sum of finite
        # ones only looks at each below.
        everything = squared_norm.device.type == "cpu" and math.isfinite(squared_norm.sum().item())
        # Each client's own C, for each record alone.
        factor = (self._clip_norms[: len(counted)] * squared_norm.rsqrt()).clamp_(max=1.0)
        finite = None if everything else torch.isfinite(squared_norm)
        counted = counted if finite is None else counted & finite
        factor = torch.where(counted, factor, 0.0).unsqueeze(2)
        for layer, a, delta in zip(layers, inputs, deltas, strict=True):
            if finite is not None:  # a factor of 0 would not do: 0 · NaN = NaN
                a, delta = (torch.where(finite.unsqueeze(2), v, 0.0) for v in (a, delta))  # noqa: PLW2901
            weighted = delta * factor
            layer.weight_of(total).baddbmm_(weighted.transpose(1, 2), a, beta=1 - anew)
            bias = layer.bias_of(total)
            if bias is not None:
                sums = weighted.sum(1, keepdim=True)
                bias.copy_(sums) if anew else bias.add_(sums)

    def _rows_of(
        self, parts: Sequence[npt.NDArray[np.int64]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return features ``(n, b, inputs)``, targets ``(n, b)``, and which of the rows count."""
        counts = np.array([len(rows) for rows in parts])
        # One row at least: batches that are all empty have the sum 0.
        shape = len(parts), max(int(counts.max()), 1)
        size, inputs = shape[0] * shape[1], self._stack.layers[0].inputs
        x, y = self._x[: size * inputs].reshape(*shape, inputs), self._y[:size].reshape(shape)
        for i, rows in enumerate(parts):
            # "clip" copies without a second buffer; the rows are within bounds.
            self._features[i].take(rows, 0, x[i, : len(rows)], "clip")
            y[i, : len(rows)] = self._jobs[i].records.targets[rows]
        counted = np.arange(shape[1]) < counts[:, np.newaxis]
        return self._stack.put(x), self._stack.put(y), self._stack.put(counted)

    def _column(self, numbers: Sequence[float]) -> torch.Tensor:
        return self._stack.put(np.array(numbers, np.float32)[:, np.newaxis])


def _output_gradient(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss's output gradients; last bits may differ."""
    if task.loss != "softmax":
        return output_gradient(task, outputs, targets)
    # A class a row: over a short last axis torch's softmax takes up to nine times as long.
    residual = torch.softmax(outputs.t().contiguous(), dim=0)
    minus = residual.new_full((1, 1), -1.0).expand(1, len(targets))
    residual = residual.scatter_add_(0, targets.unsqueeze(0), minus).t().contiguous()
    return weighted(task, residual, targets)


def _batches(job: PrivateJob) -> list[npt.NDArray[np.int64]]:
    """Return each step's Poisson batch by ``dpsgd.train``'s coins."""
    sampling, steps = job.streams.sampling, job.plan.steps
    sampling.bytes(7)  # the seed of dropout there
    return [sampling.bernoulli(len(job.records), steps.sampling_prob) for _ in range(steps.count)]
