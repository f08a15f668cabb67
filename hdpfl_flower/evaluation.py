"""How good a model is on records: one accuracy or error, one loss."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import nn

from hdpfl_flower.errors import DataError
from hdpfl_flower.losses import total_loss
from hdpfl_flower.models import Arrays, build_model
from hdpfl_flower.task import Records, Task

_BATCH = 2048


@lru_cache(maxsize=8)
def _network(spec: str, task: Task) -> nn.Module:
    return build_model(spec, task, seed=0).eval()


def predict(spec: str, task: Task, arrays: Arrays, features: np.ndarray) -> np.ndarray:
    """Return the model's outputs, float32, shape ``(n, task.outputs)``.

    Raises:
        ModelError: the model cannot be built.
    """
    network = _network(spec, task)
    parameters = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    outputs = []
    with torch.inference_mode():
        for start in range(0, len(features), _BATCH):
            batch = torch.from_numpy(features[start : start + _BATCH])
            outputs.append(torch.func.functional_call(network, parameters, (batch,)))
    return torch.cat(outputs).numpy() if outputs else np.empty((0, task.outputs), np.float32)


def evaluate(spec: str, task: Task, arrays: Arrays, records: Records) -> dict[str, float]:
    """Return :func:`measures` of a model on ``records``.

    Raises:
        ModelError: the model cannot be built.
    """
    return measures(task, predict(spec, task, arrays, records.features), records.targets)


def measures(task: Task, outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return how good outputs, shape ``(n, task.outputs)``, are for ``targets``, shape ``(n,)``.

    Returns:
        ``accuracy`` and ``loss`` (mean). For a regression ``accuracy`` is R², the explained share
        of the variance, and is missing where the targets do not vary; there are also ``mse``, the
        mean squared error, and ``mae``, the mean absolute error, in units of the target.
    """
    found, wanted = torch.from_numpy(outputs), torch.from_numpy(targets)
    loss = float(total_loss(task, found, wanted)) / max(len(wanted), 1)
    if task.loss != "squared":
        return {"accuracy": _accuracy(task, found, wanted), "loss": loss}
    errors = (found.squeeze(1) - wanted).double()
    varies = len(wanted) > 0 and bool(wanted.min() < wanted.max())
    return {
        **({"accuracy": _accuracy(task, found, wanted)} if varies else {}),
        "loss": loss,
        "mse": float(errors.square().mean()),
        "mae": float(errors.abs().mean()),
    }


def _accuracy(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    if task.loss == "squared":
        residual = (outputs.squeeze(1) - targets).square().mean()
        return float(1 - residual / targets.var(correction=0).clamp(min=1e-12))
    chosen = outputs.argmax(1) if task.loss == "softmax" else (outputs.squeeze(1) > 0).long()
    return float((chosen == targets).double().mean())


def count_correct(spec: str, task: Task, arrays: Arrays, records: Records) -> int:
    """Return how many records the model classifies correctly, each counted as 0 or 1.

    Whatever the parameters are, NaN included, a record adds at most 1. (Its own outputs are
    float32 and depend on the other records of its batch in their last bits alone.)

    Raises:
        DataError: the targets are not classes.
        ModelError: the model cannot be built.
    """
    if not task.classes:
        raise DataError("correct records can be counted for classes alone, not for a regression")
    outputs = predict(spec, task, arrays, records.features)
    chosen = outputs.argmax(1) if task.loss == "softmax" else (outputs[:, 0] > 0)
    return int(np.count_nonzero(chosen == records.targets))
