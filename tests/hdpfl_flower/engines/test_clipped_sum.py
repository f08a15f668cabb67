"""The clipped sum of one step, which shared noise adds to those of other sites."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hdpfl_flower.engines import dpsgd
from hdpfl_flower.engines.dpsgd import clipped_sum
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan

COLUMNS, RECORDS = 30, 5000
EXCESS = 1.1e-5
"""Of the docstring, and below the slack of ``shared_noise/ring.py``."""


def summed(x: np.ndarray, y: np.ndarray, physical_batch: int = 256) -> np.ndarray:
    task = Task.classification((COLUMNS,), 2)
    engine = engine_for("logreg", task, "auto", "cpu")
    size = len(engine.theta)
    plan = RoundPlan(Steps(1.0, 1), 1.0, 0.0, float(len(x)))
    records, stream = Records(x, y), RandomStream(bytes(32))
    start = np.zeros(size, np.float32)
    return clipped_sum(engine, start, records, plan, stream, physical_batch, slice(0, size))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_record_moves_the_sum_by_little_more_than_the_clip_norm(seed: int) -> None:
    """All gradients point one way: in a float32 sum of a batch the excess is 3e-4."""
    draw = np.random.default_rng(seed)
    direction = draw.normal(size=COLUMNS)
    x = (20 * direction + 0.01 * draw.normal(size=(RECORDS, COLUMNS))).astype(np.float32)
    y = np.ones(RECORDS, np.int64)
    whole = summed(x, y)
    for left_out in (0, 1234, RECORDS - 1):
        rest = np.delete(np.arange(RECORDS), left_out)
        moved = np.linalg.norm(whole - summed(x[rest], y[rest]))
        assert 1 - EXCESS < moved < 1 + EXCESS


def test_one_record_moves_a_steps_sum_by_little_more_than_the_clip_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Physical batches are added in float64; in float32 the excess is 3e-3 of 40,000 records."""
    sums = []
    monkeypatch.setattr(
        dpsgd, "add_noise", lambda total, *_: sums.append(total.clone()) or torch.zeros_like(total)
    )
    task, draw = Task.classification((COLUMNS,), 2), np.random.default_rng(4)
    engine = engine_for("logreg", task, "auto", "cpu")
    start = np.zeros(len(engine.theta), np.float32)
    x = 20 * draw.normal(size=COLUMNS) + 0.01 * draw.normal(size=(40_000, COLUMNS))
    x, y = x.astype(np.float32), np.ones(40_000, np.int64)
    plan = RoundPlan(Steps(1.0, 1), 1.0, 1.0, 40_000.0)
    for first in (0, 1):
        records, streams = Records(x[first:], y[first:]), ReleaseStreams.fresh()
        dpsgd.train(engine, start, records, plan, 0.1, streams, 256)
    moved = float((sums[0] - sums[1]).norm())
    assert 1 - 5e-5 < moved < 1 + 5e-5


@pytest.mark.parametrize("model", ["mlp:8", "cnn"])
def test_sums_of_every_engine_are_added_in_float64(model: str) -> None:
    """The same sum in another order differs by float64's rounding; float32's is 2⁻²⁴ of C·b."""
    task = Task.classification((1, 28, 28), 3)
    draw = np.random.default_rng(5)
    x = draw.normal(size=(64, 1, 28, 28)).astype(np.float32)
    y = draw.integers(0, 3, 64)
    engine = engine_for(model, task, "auto", "cpu")
    size, start = len(engine.theta), engine.theta.numpy().copy()
    plan = RoundPlan(Steps(1.0, 1), 1.0, 0.0, 64.0)
    sums = []
    for order in (np.arange(64), np.arange(64)[::-1].copy()):
        stream = RandomStream(bytes(32))
        records = Records(x[order], y[order])
        sums.append(clipped_sum(engine, start, records, plan, stream, 64, slice(0, size)))
    apart = np.linalg.norm(sums[0] - sums[1])
    assert apart < 1e-12 * np.linalg.norm(sums[0])
    assert np.linalg.norm(sums[0]) > 1
