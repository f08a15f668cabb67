"""Task losses on model outputs, with gradients for closed forms."""

from __future__ import annotations

import torch
from torch.nn import functional

from hdpfl_flower.models.task import Task

_LANES = 32
"""Block width for elementwise kernels: a multiple of torch's vector width."""


def training_loss(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed loss that is trained, a scalar: by the weights of the classes, if any."""
    if not task.class_weights:
        return total_loss(task, outputs, targets)
    return weighted(task, record_losses(task, outputs, targets), targets).sum()


def weighted(task: Task, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return ``rows``, each times the weight of its record's class; (b,) or (b, m)."""
    if not task.class_weights:
        return rows
    weights = torch.tensor(task.class_weights, dtype=rows.dtype)
    factors = weights.to(rows.device, non_blocking=True)[targets]
    return rows * factors.view(-1, *[1] * (rows.dim() - 1))


def total_loss(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the summed loss of a batch without weights of classes, a scalar.

    Args:
        task: names the loss.
        outputs: shape ``(b, task.outputs)``.
        targets: shape ``(b,)``; int64 classes, float32 for regression, or of survival.
    """
    if task.loss == "hazard":
        return _hazard_losses(outputs, targets).sum()
    if task.loss == "softmax":
        return functional.cross_entropy(outputs, targets, reduction="sum")
    if task.loss == "logistic":
        return functional.binary_cross_entropy_with_logits(
            outputs.squeeze(1), targets.to(outputs.dtype), reduction="sum"
        )
    return (outputs.squeeze(1) - targets).square().sum() / 2


def record_losses(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each record's loss, shape ``(b,)``; they sum to :func:`total_loss`."""
    if task.loss == "hazard":
        return _hazard_losses(outputs, targets).sum(1)
    if task.loss == "softmax":
        return functional.cross_entropy(outputs, targets, reduction="none")
    if task.loss == "logistic":
        return functional.binary_cross_entropy_with_logits(
            outputs.squeeze(1), targets.to(outputs.dtype), reduction="none"
        )
    return (outputs.squeeze(1) - targets).square() / 2


def output_gradient(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the gradient of :func:`training_loss` in the outputs, shape ``(b, task.outputs)``."""
    return weighted(task, _output_gradient(task, outputs, targets), targets)


def _output_gradient(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    if task.loss == "softmax":
        # Softmax and cross-entropy: p − e_y.
        residual = torch.softmax(outputs, dim=1)
        # One addition per row: no order of sums can matter.
        minus = residual.new_full((1, 1), -1.0).expand(len(targets), 1)
        return residual.scatter_add_(1, targets.unsqueeze(1), minus)
    if task.loss == "hazard":
        at_risk, event = _at_risk(outputs, targets)
        # As below: a row of the width that torch computes at once, at its own address.
        missing = -outputs.shape[1] % _LANES
        hazard = torch.sigmoid(functional.pad(outputs, (0, missing)))[:, : outputs.shape[1]]
        # Zeros, not products: an output after the last interval may not be finite.
        return torch.where(at_risk, hazard - event.to(outputs.dtype), 0.0)
    logistic = task.loss == "logistic"
    # The last of b numbers would be computed one by one, with another rounding.
    expected = torch.sigmoid(outputs.expand(-1, _LANES))[:, :1] if logistic else outputs
    return expected - targets.to(outputs.dtype).unsqueeze(1)


def _at_risk(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return boolean masks of risk and of event, shaped like ``outputs``.

    ``targets`` are those of :func:`hdpfl_flower.data.array_targets.survival_targets`.
    """
    interval = torch.arange(outputs.shape[-1], device=outputs.device)
    last = torch.div(targets, 2, rounding_mode="floor").unsqueeze(-1)
    return interval <= last, (interval == last) & (targets % 2 == 1).unsqueeze(-1)


def _hazard_losses(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return each interval's binary cross-entropy at risk, else 0, shape ``(b, T)``.

    −Σ over the intervals at risk is the log-likelihood of a discrete hazard (Singer and Willett,
    J. Educ. Stat. 1993, eq. 8).
    """
    at_risk, event = _at_risk(outputs, targets)
    # Replaced before the loss: its gradient would be NaN · 0 at values that are not finite.
    counted = torch.where(at_risk, outputs, 0.0)
    losses = functional.binary_cross_entropy_with_logits(
        counted, event.to(outputs.dtype), reduction="none"
    )
    return torch.where(at_risk, losses, 0.0)
