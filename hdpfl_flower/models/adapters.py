"""Low-rank adapters of a frozen network.

A layer's weight W becomes W + B·A, with B zero at first. Where A is fixed (FFA-LoRA: Sun et al.,
ICLR 2024, arXiv:2403.12313), the change is linear in the trained factor, so that every strategy's
weighted mean of adapters is that of the weights. Where both are trained (LoRA: Hu et al., ICLR
2022, arXiv:2106.09685), the product of means is not the mean of products.
"""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from hdpfl_flower.errors import ModelError
from hdpfl_flower.work.backbone import Backbone


class LowRank(nn.Module):
    """Change B·A of a weight seen as a matrix, a row for each output."""

    def __init__(self, weight: torch.Tensor, rank: int, seed: int, *, both: bool) -> None:
        """Draw A from ``seed``, of variance 1 / inputs; B is zero."""
        super().__init__()
        outputs, inputs = len(weight), math.prod(weight.shape[1:])
        # Uniform numbers, by no function that two processors round differently: all sites have
        # the same.
        drawn = np.random.default_rng((seed, rank)).random((rank, inputs), np.float32) - 0.5
        first = torch.from_numpy(drawn * math.sqrt(12 / inputs)).to(weight.device)
        if both:
            self.a = nn.Parameter(first)
        else:
            self.register_buffer("a", first)
        self.b = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the changed weight."""
        return weight + (self.b @ self.a).view_as(weight)


class AdaptedNetwork(nn.Module):
    """Frozen network with adapters, and a head that reads its outputs."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        """Keep both; the backbone stays in eval mode."""
        super().__init__()
        self.backbone, self.head = backbone.eval(), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the head's outputs for records, shape ``(n, outputs)``."""
        outputs: torch.Tensor = self.head(self.backbone(x))
        return outputs

    def train(self, mode: bool = True) -> AdaptedNetwork:
        """Set the head's mode."""
        super().train(mode)
        self.backbone.eval()
        return self


def adapt(network: nn.Module, head: nn.Module, backbone: Backbone) -> AdaptedNetwork:
    """Return a copy of ``network`` with adapters, under ``head``; frozen numbers are shared.

    Adapted are linear layers, convolutions without groups, and the projections of attention, if
    their weight is no smaller matrix than the adapter's.

    Raises:
        ModelError: the network has none of these layers.
    """
    shared: dict[int, object] = {
        id(value): nn.Parameter(value.detach(), requires_grad=False)
        for value in network.parameters()
    }
    shared |= {id(value): value.detach() for value in network.buffers()}
    adapted_copy = copy.deepcopy(network, shared)
    adapted = 0
    for module in list(adapted_copy.modules()):
        if getattr(module, "inplace", False):
            cast("Any", module).inplace = False  # of a value that its layer's gradient needs
        name = weight_of(module)
        weight = getattr(module, name) if name else None
        if weight is None or min(len(weight), weight[0].numel()) < backbone.rank:
            continue
        change = LowRank(weight, backbone.rank, adapted, both=backbone.trains_both)
        parametrize.register_parametrization(module, name, change)
        adapted += 1
    if not adapted:
        raise ModelError(
            f"{backbone.words} has no layer that an adapter of rank {backbone.rank} can change; "
            "take a smaller rank, or leave 'adapter' out"
        )
    return AdaptedNetwork(adapted_copy, head)


def weight_of(module: nn.Module) -> str:
    """Return the name of a layer's weight to adapt, or empty."""
    if isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1):
        return "weight"
    if isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
        return "in_proj_weight"
    return ""
