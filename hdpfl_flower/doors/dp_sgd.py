"""Private training of any torch model and data set, planned."""

from __future__ import annotations

import copy
import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from hdpfl_flower.data.array_targets import targets_in
from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import choose_engine
from hdpfl_flower.errors import DataError, ModelError, TermsError, is_ctrl_c
from hdpfl_flower.models.networks import refuse_mixing_layers
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_flower.system.devices import pick_device
from hdpfl_flower.system.printable import site_log

log = site_log()

TrainedLoss = Literal["cross-entropy", "squared"]


@dataclass(frozen=True)
class PrivateTraining:
    """Model trained by :func:`dp_sgd`, with the cost of its training.

    Attributes:
        model: the trained model, on the CPU, in eval mode.
        epsilon: the spent ε, rounded up; ``inf`` without noise.
        delta: δ.
        noise_multiplier: z; the noise of each step has the standard deviation z·C.
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
    loss: TrainedLoss = "cross-entropy",
    shape: tuple[int, ...] | None = None,
    clip_norm: float = 1.0,
    learning_rate: float = 0.1,
    physical_batch: int = 256,
    device: str = "auto",
) -> PrivateTraining:
    """Train a copy of ``model`` by DP-SGD for (ε, δ).

    Abadi et al., Deep Learning with Differential Privacy (CCS 2016), Algorithm 1, with Poisson
    sampling, calibrated by PLD. The records decide nothing except the sums to which noise is added:
    the loss and the shape are arguments, or follow from the model.

    Args:
        model: called with features of shape ``(b, *shape)``, returns ``(b, outputs)``; no layer may
            mix records (BatchNorm).
        dataset: a map-style data set of pairs (features, target); an item may depend only on its
            own record.
        epsilon: ε > 0; ``inf`` means no noise.
        delta: δ, at least 1e-10.
        records: declared number of records N, a constant that counts as public; it is not the
            length of the data set.
        batch_size: expected size b of a batch: each step takes each record with probability b/N.
        steps: number of noisy steps.
        loss: ``cross-entropy`` for the classes 0, 1, …, with one logit for two classes, or one
            output for each class. ``squared`` is half the squared error of one output, for any
            number.
        shape: shape of a record's features. None means ``(inputs,)`` of a model that begins with a
            linear layer.
        clip_norm: C, the bound on a record's gradient (l2).
        learning_rate: η.
        physical_batch: number of records in memory at the same time.
        device: ``auto``, or a torch device.

    Guarantees:
        The trained model is (ε, δ)-DP for one record more or less, and the accounted plan is the
        plan that runs. A record contributes nothing, and changes nothing for the other records, if
        its item cannot be read (it raises, is not a pair, or has another shape), if the item is not
        finite or its target does not fit the loss, or if the model raises on it. A data set without
        usable records gives a model of noise. No error depends on a record. The guarantee does not
        cover how long the training takes, a process that is killed, and log lines, which stay with
        the caller.

    Raises:
        AccountingError: no noise between 1e-3 and 1e6 fits.
        DataError: the data set has no length and no rows.
        ModelError: the model cannot be trained record by record, or ``shape`` is missing.
        TermsError: the loss is unknown.
    """
    task = task_of(model, loss, shape)
    schedule = (Steps(batch_size / records, steps),)
    z = calibrate(schedule, epsilon, delta)
    plan = RoundPlan(schedule[0], clip_norm, z * clip_norm, float(batch_size))
    refuse_mixing_layers(model)
    engine = choose_engine(
        lambda: copy.deepcopy(model), type(model).__name__, task, "auto", pick_device(device)
    )
    start = engine.theta.cpu().numpy().copy()
    update = train(
        engine,
        start,
        read_records(dataset, task, "dp_sgd"),
        plan,
        learning_rate,
        ReleaseStreams.fresh(),
        physical_batch,
    )
    trained, position = copy.deepcopy(model).cpu().eval(), 0
    for parameter in (p for p in trained.parameters() if p.requires_grad):
        values = (start + update)[position : position + parameter.numel()].reshape(
            tuple(parameter.shape)
        )
        parameter.data = torch.from_numpy(values)
        position += parameter.numel()
    spent = epsilon_of(event_of(schedule, z), delta) if z else math.inf
    return PrivateTraining(trained, spent, delta, z, plan)


def read_records(dataset: Dataset[Any], task: Task, caller: str) -> Records:
    """Return the records that can be read, each on its own; there may be none.

    Raises:
        DataError: the data set has no length and no rows; names the caller.
    """
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise DataError(
            f"{caller}: the data set must have a length and rows, as a map-style Dataset has"
        )
    items = [_item(dataset, row, task.input_shape) for row in range(len(dataset))]
    read = [item for item in items if item is not None]
    features = np.array([numbers for numbers, _ in read], np.float32)
    targets, valid = targets_in(np.array([target for _, target in read], np.float64), task)
    if missing := len(items) - int(valid.sum()):
        log.warning(
            "%s: %d of %d items do not count, because they are not finite features of shape %s "
            "with a target that fits the loss",
            caller,
            missing,
            len(items),
            task.input_shape,
        )
    return Records(features.reshape(-1, *task.input_shape)[valid], targets[valid])


def _item(
    dataset: Dataset[Any], row: int, shape: tuple[int, ...]
) -> tuple[npt.NDArray[np.float32], float] | None:
    """Return a record's features and target; None where they cannot be read, or are not finite."""
    try:
        x, y = dataset[row]
        features, target = _array(x, np.float32), float(_array(y, np.float64).item())
    except BaseException as reason:  # an exception would disclose the record
        if is_ctrl_c(reason):
            raise
        return None
    usable = features.shape == shape and bool(np.isfinite(features).all())
    return (features, target) if usable else None


def _array(value: Any, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a value as an array; tensors may be on any device, of any type."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double()
    with np.errstate(all="ignore"):
        array = np.asarray(value)
        if array.dtype.kind == "c":
            raise TypeError("a complex number")
        return array.astype(kind)


def task_of(model: nn.Module, loss: str, shape: tuple[int, ...] | None) -> Task:
    """Return shapes and loss, by the first layer and a batch of zeros.

    Raises:
        ModelError: the model fails, or ``shape`` is missing.
        TermsError: the loss is unknown.
    """
    if loss not in get_args(TrainedLoss):
        raise TermsError(f"'loss' must be one of {', '.join(get_args(TrainedLoss))}")
    if shape is None:
        first = next((module for module in model.modules() if not list(module.children())), model)
        if not isinstance(first, nn.Linear):
            raise ModelError(
                "the model does not begin with a linear layer, so its inputs do not give the "
                "shape of the features; give their shape, such as shape=(1, 28, 28)"
            )
        shape = (first.in_features,)
    try:
        with torch.no_grad():
            outputs = copy.deepcopy(model).cpu().eval()(torch.zeros(2, *shape))
    except Exception as error:
        raise ModelError(
            f"the model fails on a batch of zeros ({type(error).__name__}); it is called "
            f"with features of shape (b, {', '.join(map(str, shape))})"
        ) from error
    if outputs.ndim != 2:
        raise ModelError("the model must return outputs of shape (b, outputs)")
    if loss == "squared":
        return Task.regression(shape)
    number = int(outputs.shape[1])
    return Task(shape, number, "softmax" if number > 1 else "logistic")
