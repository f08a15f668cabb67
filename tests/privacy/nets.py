"""A user's own network, as a site's policy lists it."""

from __future__ import annotations

from torch import nn

from hdpfl_flower.models.task import Task


def layer_norm(task: Task) -> nn.Module:
    """Return a network with a layer that only the general engines cover."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, task.outputs)
    )
