"""Linear layer that starts at zero: School's ``model``.

A linear model needs no random start, and a random one costs if targets are small beside it, as
marks from 0 to 1 are: the noise of a budget allows few steps, and the steps that a rare feature
takes part in do not forget the start of its weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hdpfl_flower.models.task import Task

if TYPE_CHECKING:
    from torch import nn

LINEAR = f"{__name__}:linear"
"""Value of ``model`` that names it."""


def linear(task: Task) -> nn.Module:
    """Return a zero linear layer from flattened features to outputs.

    >>> from hdpfl_flower.models.task import Task
    >>> [p.abs().sum().item() for p in linear(Task.regression((3,))).parameters()]
    [0.0, 0.0]
    """
    from torch import nn

    layer = nn.Linear(math.prod(task.input_shape), task.outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
