"""Metrics of a model on records: accuracy or errors, and loss."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import nn

from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.concordance import concordance, risk_of
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.networks import Arrays, build_model
from hdpfl_flower.models.row_batches import BLOCKS, RowProof, align, draws, in_blocks, pool
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.devices import moved, pick_device

_BATCH = 2048


@lru_cache(maxsize=8)
def _network(spec: str, task: Task, device: str) -> nn.Module:
    return build_model(spec, task, seed=0).eval().to(device)


def predict(
    spec: str, task: Task, arrays: Arrays, features: np.ndarray, device: str = "auto"
) -> np.ndarray:
    """Return the model's outputs, float32, shape ``(n, task.outputs)``.

    ``device`` is as in a profile's ``training.device``.

    Raises:
        ModelError: the model cannot be built.
    """
    device = pick_device(device)
    network = _network(spec, task, device)
    parameters = {name: torch.tensor(array, device=device) for name, array in arrays.items()}
    outputs = []
    with torch.inference_mode():
        for start in range(0, len(features), _BATCH):
            rows = torch.from_numpy(features[start : start + _BATCH])
            batch = moved(rows, torch.device(device))
            outputs.append(torch.func.functional_call(network, parameters, (batch,)))
    return torch.cat(outputs).cpu().numpy() if outputs else np.empty((0, task.outputs), np.float32)


def evaluate(
    spec: str, task: Task, arrays: Arrays, records: Records, device: str = "auto"
) -> dict[str, float]:
    """Return :func:`measures` of a model on ``records``.

    Raises:
        ModelError: the model cannot be built.
    """
    outputs = predict(spec, task, arrays, records.features, device)
    return measures(task, outputs, records.targets)


def measures(task: Task, outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Return metrics of outputs ``(n, task.outputs)`` for ``targets`` ``(n,)``.

    Returns:
        ``accuracy`` and ``loss`` (mean). For a regression ``accuracy`` is R², the explained share
        of the variance, and is missing where the targets do not vary; there are also ``mse``, the
        mean squared error, and ``mae``, the mean absolute error, in units of the target. Survival
        has ``loss`` and ``concordance``, which is missing where no two records can be compared.
    """
    predicted, wanted = torch.from_numpy(outputs), torch.from_numpy(targets)
    loss = float(total_loss(task, predicted, wanted)) / max(len(wanted), 1)
    if task.intervals:
        ranked = concordance(risk_of(outputs), targets)
        return {**({"concordance": ranked} if np.isfinite(ranked) else {}), "loss": loss}
    if task.loss != "squared":
        return {"accuracy": _accuracy(task, predicted, wanted), "loss": loss}
    errors = (predicted.squeeze(1) - wanted).double()
    varies = len(wanted) > 0 and bool(wanted.min() < wanted.max())
    return {
        **({"accuracy": _accuracy(task, predicted, wanted)} if varies else {}),
        "loss": loss,
        "mse": float(errors.square().mean()),
        "mae": float(errors.abs().mean()),
    }


def _accuracy(task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    if task.loss == "squared":
        # R² = 1 − MSE/Var; the clamp prevents a division by 0 for constant targets.
        residual = (outputs.squeeze(1) - targets).square().mean()
        return float(1 - residual / targets.var(correction=0).clamp(min=1e-12))
    # A logit above 0 is a probability above ½.
    chosen = outputs.argmax(1) if task.loss == "softmax" else (outputs.squeeze(1) > 0).long()
    return float((chosen == targets).double().mean())


def count_correct(
    spec: str, task: Task, arrays: Arrays, records: Records, device: str = "auto"
) -> int:
    """Return the number of correctly classified records, each 0 or 1.

    Guarantees:
        Whether a record is counted depends on that record and on ``arrays`` alone, for any
        values, NaN included: one record more or less changes the count by at most 1. They are taken
        in blocks of a constant number of rows, at which that is proven on this machine
        (:mod:`hdpfl_flower.models.row_batches`), or one by one.

    Raises:
        DataError: the targets are not classes.
        ModelError: the model cannot be built.
    """
    if not task.classes:
        raise DataError(
            "correct records can be counted only for classes, not for a regression or survival"
        )
    if not len(records):
        return 0
    outputs = predict_apart(spec, task, arrays, records.features, device)
    chosen = outputs.argmax(1) if task.loss == "softmax" else (outputs[:, 0] > 0)
    return int(np.count_nonzero(chosen == records.targets))


def predict_apart(
    spec: str, task: Task, arrays: Arrays, features: np.ndarray, device: str = "auto"
) -> np.ndarray:
    """Return the model's outputs, float32, shape ``(n, task.outputs)``, n ≥ 1.

    Guarantees:
        Each row's outputs depend on that row and on ``arrays`` alone, see :func:`count_correct`.
        They are NaN for a row on which the model raises.

    Raises:
        ModelError: the model cannot be built.
    """
    counting = _counting(spec, task, pick_device(device))
    return counting.outputs(arrays, torch.from_numpy(features)).numpy()


class _Counting:
    """Network on blocks of rows that do not affect each other."""

    def __init__(self, spec: str, task: Task, device: str) -> None:
        self._device, self._outputs = torch.device(device), task.outputs
        self._network = align(build_model(spec, task, seed=0).eval().to(device))
        named = [(n, p.detach()) for n, p in self._network.named_parameters() if p.requires_grad]
        drawn = draws(torch.cat([p.reshape(-1) for _, p in named]))
        sizes = [p.numel() for _, p in named]
        self._pool = pool(self._network, task)[0].to(device)
        self._trials = [
            {
                name: values.view_as(p)
                for (name, p), values in zip(named, torch.split(numbers, sizes), strict=True)
            }
            for numbers in drawn
        ]
        self._proof = RowProof(lambda kind, rows: [self._run(self._trials[kind], self._pool[rows])])

    def outputs(self, arrays: Arrays, features: torch.Tensor) -> torch.Tensor:
        """Return the outputs, on the CPU, shape ``(n, task.outputs)``, n ≥ 1."""
        # Copies: memory that torch allocated has the alignment that the proof assumes.
        parameters = {
            name: torch.tensor(array, device=self._device) for name, array in arrays.items()
        }
        lost = torch.full((1, self._outputs), torch.nan, device=self._device)
        block = self._proof.block(BLOCKS)
        return in_blocks(
            lambda x: self._run(parameters, moved(x, self._device)), features, block, lost
        ).cpu()

    def _run(self, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            outputs: torch.Tensor = torch.func.functional_call(self._network, parameters, (x,))
        return outputs


@lru_cache(maxsize=8)
def _counting(spec: str, task: Task, device: str) -> _Counting:
    return _Counting(spec, task, device)
