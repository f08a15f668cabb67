"""Units of several records: one clipped gradient each, in batches and in trials."""

from __future__ import annotations

import pytest
import torch

from hdpfl_flower.engines.unit_engines import UnitEngine
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.row_batches import pool
from tests.hdpfl_flower.engines.oracle import (
    TASKS,
    TOLERANCE,
    clipped_sum,
    one_thread,  # noqa: F401
    reference,
    sum_of,
)
from tests.hdpfl_flower.engines.test_engines import KINDS, records_of


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("spec", ["logreg", "mlp:32"])
def test_the_records_of_a_unit_are_clipped_as_one(spec: str, task: str) -> None:
    """Their mean, weights of 0 left out; and one unit of any records moves the sum by C."""
    model = build_model(spec, TASKS[task], seed=3)
    engine = UnitEngine(model, TASKS[task], torch.device("cpu"), 3)
    x, y, gradients = reference(spec, engine.task, 18)
    weights = torch.tensor([[1 / 3] * 3, [1 / 2, 1 / 2, 0], [1, 0, 0]] * 2)
    units = x.view(6, 3, *x.shape[1:]), torch.stack([y.view(6, 3).float(), weights], dim=2)
    means = (gradients.view(6, 3, -1) * weights.unsqueeze(2)).sum(1)
    for clip_norm in (float(2 * means.norm(dim=1).max()), float(0.5 * means.norm(dim=1).min())):
        expected = clipped_sum(means, clip_norm)
        error = (sum_of(engine, *units, clip_norm) - expected).norm()
        assert error <= TOLERANCE * expected.norm()
    x, y = records_of(engine.task, [*KINDS, "plain"][:15], 1)
    units = x.view(5, 3, *x.shape[1:]), torch.stack([y.view(5, 3).float(), weights[:5]], dim=2)
    for clip_norm in (1e-3, 1.0, 100.0):
        whole = sum_of(engine, *units, clip_norm)
        for out in range(5):
            rest = [at for at in range(5) if at != out]
            moved = whole - sum_of(engine, units[0][rest], units[1][rest], clip_norm)
            assert moved.norm() <= clip_norm * (1 + TOLERANCE)


def test_units_of_a_trial_hold_1_to_k_records_and_blank_ones_k() -> None:
    task, most = TASKS["classes"], 3
    engine = UnitEngine(build_model("logreg", task, seed=3), task, torch.device("cpu"), most)
    (x, y), (records, _) = engine._trial_rows(), pool(engine.model, task)
    for at, (unit, weights) in enumerate(zip(x, y[:, :, 1], strict=True)):
        held = 1 + at % most
        assert weights.tolist() == [float(torch.tensor(1 / held))] * held + [0.0] * (most - held)
        for place in range(held):
            other = records[(at + place) % len(records)]
            assert torch.equal(unit[place].nan_to_num(), other.nan_to_num())
    x, y = engine.blank(2)
    assert torch.equal(x, torch.zeros(2, most, *task.input_shape))
    assert torch.equal(y, torch.tensor([0, 1 / most]).expand(2, most, 2))
