"""Clipped sums by Opacus' hooks: the most general engine."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from hdpfl_flower.engines.engines import RowEngine
from hdpfl_flower.models.losses import output_gradient
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.extras import extra


class OpacusEngine(RowEngine):
    """Per-record gradients by Opacus' hooks, for layers outside ``torch.func``."""

    def __init__(self, model: nn.Module, task: Task, device: torch.device) -> None:
        """Wrap ``model``; its parameters stay views of ``theta``."""
        with extra("opacus", "'training.engine' = 'opacus'"):
            from opacus import GradSampleModule

        super().__init__(model, task, device)
        self._hooked = GradSampleModule(self.model, batch_first=True, loss_reduction="sum")

    def _rows(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return them by one backward pass with Opacus' hooks; raises where a layer mixes rows."""
        try:
            return self._hooked_rows(x, y)
        except BaseException:
            self._forget()
            raise

    def _forget(self) -> None:
        """Clear the hooks' state of a broken pass, which the next pass would add."""
        for module in self.model.modules():
            for name in ("activations", "max_batch_len"):
                vars(module).pop(name, None)
        for parameter in self.model.parameters():
            parameter.grad, state = None, vars(parameter)
            state.pop("_current_grad_sample", None)
            if "_forward_counter" in state:
                state["_forward_counter"], state["grad_sample"] = 0, None

    def _hooked_rows(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of hooks on the first layer
            outputs = self._hooked(x)
            torch.autograd.backward(outputs, output_gradient(self.task, outputs.detach(), y))
        trained: list[Any] = [p for p in self.model.parameters() if p.requires_grad]
        # Taken off the parameters below: Opacus would keep the next batch's gradients beside these.
        gradients = [parameter.grad_sample for parameter in trained]
        for parameter in trained:
            parameter.grad = parameter.grad_sample = None
        # A layer that folds records or repeats them has another count: its rows are no one
        # record's.
        if any(len(gradient) != len(x) for gradient in gradients):
            raise RuntimeError("a layer does not see one row a record")
        return outputs.detach(), gradients
