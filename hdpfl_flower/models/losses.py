"""The losses of a task on a model's outputs, with the gradient that closed forms need."""

from __future__ import annotations

import torch
from torch.nn import functional

from hdpfl_flower.models.task import Task

_LANES = 32
"""Numbers that torch computes at once, or a multiple."""


def total_loss(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed loss of a batch, a scalar.

    Args:
        task: names the loss.
        outputs: shape ``(b, task.outputs)``.
        targets: shape ``(b,)``; int64 classes, or float32 for regression.
    """
    if task.loss == "softmax":
        return functional.cross_entropy(outputs, targets, reduction="sum")
    if task.loss == "logistic":
        return functional.binary_cross_entropy_with_logits(
            outputs.squeeze(1), targets.to(outputs.dtype), reduction="sum"
        )
    return (outputs.squeeze(1) - targets).square().sum() / 2


def record_losses(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each record, shape ``(b,)``; their sum is :func:`total_loss`."""
    if task.loss == "softmax":
        return functional.cross_entropy(outputs, targets, reduction="none")
    if task.loss == "logistic":
        return functional.binary_cross_entropy_with_logits(
            outputs.squeeze(1), targets.to(outputs.dtype), reduction="none"
        )
    return (outputs.squeeze(1) - targets).square() / 2


def output_gradient(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the gradient of each record's loss in its outputs, shape ``(b, task.outputs)``."""
    if task.loss == "softmax":
        # Softmax and cross-entropy: p − e_y.
        residual = torch.softmax(outputs, dim=1)
        residual[torch.arange(len(targets), device=targets.device), targets] -= 1
        return residual
    logistic = task.loss == "logistic"
    # Of b numbers the last ones would be computed one by one, and rounded otherwise.
    expected = torch.sigmoid(outputs.expand(-1, _LANES))[:, :1] if logistic else outputs
    return expected - targets.to(outputs.dtype).unsqueeze(1)
