"""Network of all sites. Layers that mix records (BatchNorm) are refused."""

from __future__ import annotations

import math

from torch import nn

from hdpfl_flower.models.task import Task


def build(task: Task) -> nn.Module:
    """Return a network with input shape and ``task.outputs`` outputs.

    Returns numbers, not probabilities: the loss takes the softmax, or the logistic function.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(task.input_shape), 16),
        nn.Tanh(),
        nn.Linear(16, task.outputs),
    )
