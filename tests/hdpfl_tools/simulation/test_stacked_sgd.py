"""Clients in one product do what each of them does alone, and nothing that another one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from client_app.training.plain_sgd import LocalJob, Network, shuffled_batches
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_tools.simulation import stacked_sgd as stacked
from hdpfl_tools.simulation.stacked_sgd import stack_for

RATE, INPUTS = 0.3, 12
SIZES = ((30, 10, 1), (7, 3, 2), (1, 4, 1), (0, 5, 1), (30, 8, 1), (23, 10, 3))
"""Records, batch size and epochs of each client: one step, none, and batches that are not full."""
TASKS = {
    "softmax": Task.classification((3, 4), 3),
    "logistic": Task.classification((INPUTS,), 2),
    "squared": Task.regression((INPUTS,)),
    "hazard": Task.survival((INPUTS,), 5),
    "weighted": replace(Task.classification((3, 4), 3), class_weights=(0.25, 5.0, 1.0)),
    "weighted pair": replace(Task.classification((INPUTS,), 2), class_weights=(1.0, 4.0)),
}


def no_bias(task: Task) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(INPUTS, 6, bias=False), nn.Linear(6, task.outputs), nn.ReLU()
    )


def jobs_of(network: Network, pull: float | None = None) -> list[LocalJob]:
    draws, task, found = np.random.default_rng(5), network.task, []
    start = network.theta.numpy().copy()
    for number, (count, batch, epochs) in enumerate(SIZES):
        features = draws.standard_normal((count, *task.input_shape), np.float32)
        targets = draws.standard_normal(count).astype(np.float32)
        if task.target_values:
            targets = draws.integers(0, task.target_values, count)
        stream = RandomStream(bytes(31) + bytes([number]))
        batches = tuple(shuffled_batches(count, batch, epochs, 0, stream))
        own = start + draws.standard_normal(len(start), np.float32) / 8
        towards = None if pull is None else (pull / (number + 1), start)
        found.append(
            LocalJob(start if pull is None else own, Records(features, targets), batches, towards)
        )
    return found


def tolerance(job: LocalJob, end: np.ndarray) -> float:
    """Two float32 sums of m terms differ by at most 2·m·2⁻²⁴ of the sum of their sizes.

    m is at most the inputs or a batch; three layers, there and back, in every step. The sizes are
    taken for eight times the parameters and what they move by.
    """
    largest = float(np.abs(job.start).max() + np.abs(end - job.start).max())
    return 2 * max(INPUTS, 10) * 2**-24 * 6 * max(len(job.batches), 1) * 8 * largest


@pytest.mark.parametrize("pull", [None, 0.4])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("spec", ["logreg", "mlp:8", "mlp:8:5", f"{__name__}:no_bias"])
def test_each_client_ends_where_it_ends_alone(
    spec: str, task: str, pull: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hdpfl_flower.models.networks._user_model", lambda _, task: no_bias(task))
    network, stack = Network(spec, TASKS[task], "cpu"), stack_for(spec, TASKS[task], "cpu")
    jobs = jobs_of(network, pull)
    alone = [network.train(job, RATE) for job in jobs]
    together = stack.train(jobs, RATE)
    moved = [np.any(end != job.start) for end, job in zip(alone, jobs, strict=True)]
    assert sum(moved) >= 3
    for i, job in enumerate(jobs):
        np.testing.assert_allclose(together[i], alone[i], rtol=0, atol=tolerance(job, alone[i]))
        for k, other in enumerate(alone):  # a mix-up is far outside
            if k != i and (moved[i] or moved[k]):
                assert np.abs(together[i] - other).max() > 10 * tolerance(job, alone[i])
    monkeypatch.setattr(stacked, "_AT_ONCE", 2 * len(alone[0]))  # two at a time
    for one, other, job in zip(stack.train(jobs, RATE), together, jobs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance(job, other))


def test_what_is_not_finite_at_one_client_stays_with_it() -> None:
    task = TASKS["softmax"]
    network, stack = Network("mlp:8", task, "cpu"), stack_for("mlp:8", task, "cpu")
    jobs = jobs_of(network)
    clean = stack.train(jobs, RATE)
    jobs[1].records.features[0, 0, 0] = np.nan
    found = stack.train(jobs, RATE)
    assert not np.isfinite(found[1]).all()
    for i in set(range(len(jobs))) - {1}:
        np.testing.assert_array_equal(found[i], clean[i])


class OwnForward(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(0, keepdim=True)


def frozen(layer: nn.Linear) -> nn.Linear:
    layer.weight.requires_grad_(False)
    return layer


def tied(task: Task) -> nn.Module:
    layer = nn.Linear(12, 12)
    return nn.Sequential(nn.Flatten(), layer, layer, nn.Linear(12, task.outputs))


@pytest.mark.parametrize(
    "build",
    [
        lambda task: nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(12, task.outputs)),
        lambda task: nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 3)),
        lambda task: nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(12, task.outputs)),
        lambda task: nn.Sequential(nn.Linear(4, 1), nn.Flatten()),
        lambda task: nn.Sequential(nn.Flatten(), frozen(nn.Linear(12, 12)), nn.Linear(12, 3)),
        lambda task: nn.Sequential(nn.Flatten(0), nn.Linear(12, task.outputs)),
        lambda task: nn.Sequential(nn.Flatten(), nn.Linear(12, task.outputs).double()),
        lambda task: OwnForward(nn.Flatten(), nn.Linear(12, task.outputs)),
        lambda task: nn.Linear(12, task.outputs),
        tied,
    ],
)
def test_a_model_that_is_anything_else_is_not_stacked(
    build: Callable[[Task], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacked, "build_model", lambda *_, **__: build(TASKS["softmax"]))
    stack_for.cache_clear()
    try:
        assert stack_for("any", TASKS["softmax"], "cpu") is None
    finally:
        stack_for.cache_clear()
