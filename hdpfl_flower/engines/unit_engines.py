"""One clipped gradient for several records of a unit."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import vmap

from hdpfl_flower.engines.engines import VmapEngine
from hdpfl_flower.models.row_batches import pool
from hdpfl_flower.models.task import Task


class UnitEngine(VmapEngine):
    """One gradient for up to K records of a unit, the mean of theirs: clipped as one.

    Features are of shape ``(b, K, *input_shape)``; targets float32 ``(b, K, 2)``: target and weight
    of each record. Weights of a unit sum to 1; a record of weight 0 fills the unit up.
    """

    def __init__(self, model: nn.Module, task: Task, device: torch.device, most: int) -> None:
        """Take K = ``most``."""
        super().__init__(model, task, device)
        self._most = most

    def blank(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``count`` units of zeros: features and targets."""
        x, y = super().blank(count * self._most)
        return self._in_units(x, y, torch.full_like(x.flatten(1)[:, 0], 1 / self._most))

    def _trial_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return units of 1 to K records of the pool, beside one another."""
        x, y = pool(self.model, self.task)
        place = torch.arange(self._most).expand(len(x), -1)
        held = 1 + torch.arange(len(x)).unsqueeze(1) % self._most
        rows = (torch.arange(len(x)).unsqueeze(1) + place % held) % len(x)
        weights = (place < held) / held
        return self._in_units(x[rows.flatten()], y[rows.flatten()], weights.flatten())

    def _in_units(
        self, x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        targets = torch.stack([y.float(), weights], dim=1)
        return x.view(-1, self._most, *x.shape[1:]), targets.view(-1, self._most, 2)

    def _loss(
        self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss of a unit's records, and their outputs."""
        targets = y[:, 0] if self.task.loss == "squared" else y[:, 0].long()
        losses_of = vmap(super()._loss, in_dims=(None, 0, 0), randomness="different")
        losses, outputs = losses_of(parameters, x, targets)
        return (losses * y[:, 1]).sum(), outputs
