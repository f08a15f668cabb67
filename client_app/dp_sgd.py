"""Private training of any torch model and data set, planned."""

from __future__ import annotations

import copy
import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from client_app.training.dpsgd import train
from client_app.training.engine_choice import choose_engine
from hdpfl_flower.data.array_targets import targets_in
from hdpfl_flower.errors import DataError, ModelError
from hdpfl_flower.models.networks import refuse_mixing_layers
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_flower.system.devices import pick_device


@dataclass(frozen=True)
class PrivateTraining:
    """Model trained by :func:`dp_sgd`, with the cost of its training.

    Attributes:
        model: the trained model, on the CPU, in eval mode.
        epsilon: ε that was spent, rounded up; ``inf`` without noise.
        delta: δ.
        noise_multiplier: z: each step's noise has the standard deviation z·C.
        plan: the steps, q, C, the noise and the divisor.
    """

    model: nn.Module
    epsilon: float
    delta: float
    noise_multiplier: float
    plan: RoundPlan


def dp_sgd(  # noqa: PLR0913 - the last by name
    model: nn.Module,
    dataset: Dataset[Any],
    *,
    epsilon: float,
    delta: float,
    records: int,
    batch_size: int,
    steps: int,
    clip_norm: float = 1.0,
    learning_rate: float = 0.1,
    physical_batch: int = 256,
    device: str = "auto",
) -> PrivateTraining:
    """Train a copy of ``model`` by DP-SGD for (ε, δ).

    Abadi et al., Deep Learning with Differential Privacy (CCS 2016), Algorithm 1, with Poisson
    sampling, calibrated by PLD. The loss follows the targets: cross-entropy for whole numbers (one
    logit for two classes, or an output a class), half the squared error for other numbers.

    Args:
        model: called with features of shape ``(b, *shape)``, returns ``(b, outputs)``; no layer may
            mix records (BatchNorm).
        dataset: a map-style data set of pairs (features, target).
        epsilon: ε > 0; ``inf``: no noise.
        delta: δ, at least 1e-10.
        records: declared number of records N, a constant that counts as public; not the length.
        batch_size: expected size b of a batch: each step takes each record with probability b/N.
        steps: noisy steps.
        clip_norm: C, the bound on a record's gradient (l2).
        learning_rate: η.
        physical_batch: records in memory at once.
        device: ``auto``, or a torch device.

    Guarantees:
        The trained model is (ε, δ)-DP for one record more or less; what is accounted is what runs.
        A record that is not finite, or whose target is none of the model's, contributes nothing.

    Raises:
        AccountingError: no noise between 1e-3 and 1e6 fits.
        DataError: the data set is empty, or its items are no pairs of one shape.
        ModelError: the model cannot be trained record by record.
    """
    x, y = _arrays(dataset)
    task = _task_of(model, x, y)
    known = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    targets, is_target = targets_in(y, task)
    known &= is_target
    schedule = (Steps(batch_size / records, steps),)
    z = calibrate(schedule, epsilon, delta)
    plan = RoundPlan(schedule[0], clip_norm, z * clip_norm, float(batch_size))
    refuse_mixing_layers(model)
    engine = choose_engine(
        lambda: copy.deepcopy(model), type(model).__name__, task, "auto", pick_device(device)
    )
    start = engine.theta.cpu().numpy().copy()
    update = train(
        engine, start, Records(x[known], targets[known]), plan, learning_rate,
        ReleaseStreams.fresh(), physical_batch,
    )  # fmt: skip
    trained, at = copy.deepcopy(model).cpu().eval(), 0
    for parameter in (p for p in trained.parameters() if p.requires_grad):
        part = (start + update)[at : at + parameter.numel()].reshape(tuple(parameter.shape))
        parameter.data = torch.from_numpy(part)
        at += parameter.numel()
    spent = epsilon_of(event_of(schedule, z), delta) if z else math.inf
    return PrivateTraining(trained, spent, delta, z, plan)


def _arrays(dataset: Dataset[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return features float32 ``(n, *shape)`` and targets float64 ``(n,)``, or integers."""
    pairs = [dataset[row] for row in range(len(cast(Sized, dataset)))]
    try:
        x = np.stack([np.asarray(features, dtype=np.float32) for features, _ in pairs])
        y = np.array([np.asarray(target).item() for _, target in pairs])
    except (ValueError, TypeError):
        raise DataError(
            "dp_sgd: the data set must hold pairs (features of one shape, one target)"
        ) from None
    return x, y


def _task_of(model: nn.Module, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Task:
    """Return shapes and loss, by a zero batch."""
    try:
        with torch.no_grad():
            outputs = copy.deepcopy(model).cpu().eval()(torch.zeros(2, *x.shape[1:]))
    except Exception as error:
        raise ModelError(
            f"dp_sgd: the model fails on a batch of zeros ({type(error).__name__}); it is called "
            f"with features of shape (b, {', '.join(map(str, x.shape[1:]))})"
        ) from error
    if outputs.ndim != 2:
        raise ModelError("dp_sgd: the model must return outputs of shape (b, outputs)")
    if y.dtype.kind not in "iub":
        return Task.regression(x.shape[1:])
    number = int(outputs.shape[1])
    return Task(x.shape[1:], number, "softmax" if number > 1 else "logistic")
