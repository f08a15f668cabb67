"""A linear layer that starts at zero: the run config's ``model`` of School.

A linear model needs no drawn start, and a drawn one costs where targets are small beside it, as
marks from 0 to 1 are: the noise of a budget leaves few steps, and those that a rare feature takes
part in do not forget where its weight began.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hdpfl_flower.models.task import Task

if TYPE_CHECKING:
    from torch import nn

LINEAR = f"{__name__}:linear"
"""As ``model`` names it."""


def linear(task: Task) -> nn.Module:
    """Return one linear layer from the flattened features to the task's outputs, all zeros.

    >>> from hdpfl_flower.models.task import Task
    >>> [p.abs().sum().item() for p in linear(Task.regression((3,))).parameters()]
    [0.0, 0.0]
    """
    from torch import nn

    layer = nn.Linear(math.prod(task.input_shape), task.outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
