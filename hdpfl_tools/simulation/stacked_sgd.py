"""Local SGD of many clients in batched products.

A step over ten records of a small model is mostly overhead. Here the clients are a leading axis.
Each has its own parameters, records and batches, and no number of one reaches another: client by
client the result is that of ``plain_sgd.Network``, to float32 rounding (another order of sums).

``torch.func.stack_module_state`` with ``vmap`` stacks any model, but takes 1.5 to 4.6 times as long
on digits, so the two passes are written out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from client_app.training.plain_sgd import LocalJob, Vector
from hdpfl_flower.engines.allocator import keep_freed_memory
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.losses import output_gradient
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.devices import moved

_AT_ONCE = 2**19
"""Parameters of the clients that step together: 2 MiB, which fits into a core's cache."""

OutputGradient = Callable[[Task, torch.Tensor, torch.Tensor], torch.Tensor]
"""As :func:`hdpfl_flower.models.losses.output_gradient`."""


@dataclass
class Linear:
    """A linear layer: where it begins in the parameter vector, and whether a ReLU follows it."""

    start: int
    inputs: int
    outputs: int
    bias: bool
    relu: bool = False

    @property
    def size(self) -> int:
        """The number of its parameters."""
        return self.outputs * (self.inputs + self.bias)

    def weight_of(self, theta: torch.Tensor) -> torch.Tensor:
        """Return the clients' weights, shape ``(n, outputs, inputs)``, as a view of ``theta``."""
        stop = self.start + self.outputs * self.inputs
        return theta[:, self.start : stop].view(-1, self.outputs, self.inputs)

    def bias_of(self, theta: torch.Tensor) -> torch.Tensor | None:
        """Return the clients' biases, shape ``(n, 1, outputs)``, as a view; None without one."""
        stop = self.start + self.size
        return theta[:, stop - self.outputs : stop].unsqueeze(1) if self.bias else None


class Stack:
    """A model of linear layers and ReLUs, for many clients at once.

    Attributes:
        layers: in order.
        task: shapes and loss.
        device: where the products are computed.
        size: d, the number of parameters.
    """

    def __init__(self, layers: Sequence[Linear], task: Task, device: str) -> None:
        """Made by :func:`stack_for` only."""
        self.layers, self.task, self.device = layers, task, torch.device(device)
        self.size = sum(layer.size for layer in layers)

    def train(self, jobs: Sequence[LocalJob], learning_rate: float) -> list[Vector]:
        """Return each client's parameters after its own steps, shape ``(d,)``, in their order.

        Args:
            jobs: the clients'; they may differ in records, batch sizes and numbers of steps.
            learning_rate: η.

        Raises:
            TermsError: a job trains parts of the model, which is for ``plain_sgd.py`` alone.
        """
        if any(job.phases for job in jobs):
            raise TermsError("a stack cannot train parts of a model")
        ends: dict[int, Vector] = {}
        # Those with batches alike are together: a shorter batch is filled up with empty rows.
        order = sorted(range(len(jobs)), key=lambda i: (_widest(jobs[i]), len(jobs[i].batches)))
        count = max(_AT_ONCE // self.size, 1)
        for first in range(0, len(order), count):
            # The most steps first: in every step, those with steps left are the first ones.
            some = sorted(order[first : first + count], key=lambda i: -len(jobs[i].batches))
            theta = self._run([jobs[i] for i in some], learning_rate)
            ends.update(zip(some, theta.cpu().numpy(), strict=True))
        return [ends[i] for i in range(len(jobs))]

    def _run(self, jobs: Sequence[LocalJob], learning_rate: float) -> torch.Tensor:
        """Return the parameters after all steps, shape ``(n, d)``."""
        theta = self.put(np.stack([job.start for job in jobs]))
        anchors = rates = None
        if any(job.pull for job in jobs):
            pulls = [job.pull or (0.0, job.start) for job in jobs]
            anchors = self.put(np.stack([anchor for _, anchor in pulls]))
            rates = self.put(np.array([[learning_rate * pull] for pull, _ in pulls], np.float32))
        for step in range(len(jobs[0].batches)):
            active = [job for job in jobs if len(job.batches) > step]
            x, y, shares = (self.put(array) for array in batch_of(active, step))
            # Jobs are sorted by their steps, so those with one left are the first k rows.
            k = len(active)
            active_theta = theta[:k]
            inputs, residual = self.forward(active_theta, x, y)
            # 1/b of a client's own batch; 0 for the rows that fill it up.
            residual.mul_(shares)
            back = self.backward(active_theta, inputs, residual)
            if anchors is not None and rates is not None:
                active_theta.lerp_(anchors[:k], rates[:k])
            for layer, before, gradient in zip(self.layers, inputs, back, strict=True):
                weight, bias = layer.weight_of(active_theta), layer.bias_of(active_theta)
                weight.baddbmm_(gradient.transpose(1, 2), before, alpha=-learning_rate)
                if bias is not None:
                    bias.sub_(gradient.sum(1, keepdim=True), alpha=learning_rate)
        return theta

    def forward(
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        gradient: OutputGradient = output_gradient,
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return each layer's input and the loss gradient per record.

        Args:
            theta: the clients' parameters, shape ``(n, d)``.
            x: features, shape ``(n, b, inputs)``.
            y: targets, shape ``(n, b)``.
            gradient: of the losses in the outputs, ``(n · b, outputs)``; it returns
                contiguous rows for contiguous rows.
        """
        inputs = [x]
        for layer in self.layers:
            weight, bias = layer.weight_of(theta).transpose(1, 2), layer.bias_of(theta)
            product = torch.bmm(inputs[-1], weight)
            outputs = product if bias is None else product.add_(bias)
            inputs.append(outputs.relu_() if layer.relu else outputs)
        residual = gradient(self.task, inputs[-1].flatten(0, 1), y.flatten())
        residual = residual.view_as(inputs[-1])
        if self.layers[-1].relu:
            residual.mul_(inputs[-1] > 0)
        return inputs[:-1], residual

    def backward(
        self, theta: torch.Tensor, inputs: list[torch.Tensor], residual: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return the loss's gradient in each layer's outputs."""
        deltas = [residual]
        for index in range(len(self.layers) - 1, 0, -1):
            below = torch.bmm(deltas[-1], self.layers[index].weight_of(theta))
            if self.layers[index - 1].relu:
                # The ReLU's derivative: its output is the next layer's input.
                below.mul_(inputs[index] > 0)
            deltas.append(below)
        return deltas[::-1]

    def put(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return ``array`` on the device, not waited for; on the CPU it shares its memory."""
        return moved(torch.from_numpy(array), self.device)


@lru_cache(maxsize=4)
def stack_for(spec: str, task: Task, device: str) -> Stack | None:
    """Return the stack of linear layers and ReLUs, or None.

    Raises:
        ModelError: the model cannot be built.
    """
    keep_freed_memory()
    layers = _layers_of(build_model(spec, task, seed=0), task)
    return Stack(layers, task, device) if layers else None


def _layers_of(model: nn.Module, task: Task) -> list[Linear]:
    """Return the layers, or none if any is unknown."""
    layers: list[Linear] = []
    stackable = type(model) is nn.Sequential and len(set(model)) == len(model)
    flat = len(task.input_shape) == 1
    for module in model.children():
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            flat = True
        elif type(module) is nn.ReLU and layers:
            layers[-1].relu = True
        elif type(module) is nn.Linear and flat:
            start = layers[-1].start + layers[-1].size if layers else 0
            has_bias = module.bias is not None
            layers.append(Linear(start, module.in_features, module.out_features, has_bias))
        else:
            stackable = False
    sizes = [math.prod(task.input_shape)]
    for layer in layers:
        stackable &= layer.inputs == sizes[-1]
        sizes.append(layer.outputs)
    parameters = list(model.parameters())
    stackable &= all(p.requires_grad and p.dtype is torch.float32 for p in parameters)
    stackable &= sum(p.numel() for p in parameters) == sum(layer.size for layer in layers)
    return layers if stackable and sizes[-1] == task.outputs else []


def _widest(job: LocalJob) -> int:
    """Return the size of a client's largest batch."""
    return max((len(rows) for rows in job.batches), default=0)


def batch_of(
    jobs: Sequence[LocalJob], step: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Return a step's features ``(n, b, f)``, targets ``(n, b)`` and shares ``(n, b, 1)``.

    A record counts 1 over the size of its client's batch; a row that fills up is all zeros.
    """
    shape = len(jobs), max(len(job.batches[step]) for job in jobs)
    # Features are flat here: (n, b, f).
    features = np.zeros((*shape, math.prod(jobs[0].records.features.shape[1:])), np.float32)
    targets = np.zeros(shape, jobs[0].records.targets.dtype)
    shares = np.zeros((*shape, 1), np.float32)
    for i, job in enumerate(jobs):
        rows = job.batches[step]
        features[i, : len(rows)] = job.records.features[rows].reshape(len(rows), -1)
        targets[i, : len(rows)] = job.records.targets[rows]
        shares[i, : len(rows)] = 1 / len(rows)
    return features, targets, shares
