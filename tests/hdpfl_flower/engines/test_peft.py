"""Own models with layers of the library peft: runs where it is installed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Task
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from tests.hdpfl_flower.engines.oracle import clipped_sum, draw, one_thread, sum_of  # noqa: F401

peft: Any = pytest.importorskip("peft")

TASK = Task.classification((1, 8, 8), 10)
SPEC = f"{__name__}:with_adapters"
RANK, WIDTH = 2, 32
TRAINED = RANK * (64 + WIDTH) + WIDTH * 10 + 10
"""Numbers of the adapter's two factors and of the head."""
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def with_adapters(task: Task) -> nn.Module:
    """Return a frozen layer with an adapter, and a trained head."""
    torch.manual_seed(5)  # the frozen numbers: one seed in place of a file
    base = nn.Sequential(
        nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, task.outputs)
    )
    found: nn.Module = peft.get_peft_model(
        base, peft.LoraConfig(r=RANK, target_modules=["1"], modules_to_save=["3"])
    )
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_its_adapters_are_trained_and_clipped_by_record(device: str) -> None:
    engine = engine_for(SPEC, TASK, "auto", device)
    assert len(engine.theta) == TRAINED
    engine.theta.copy_(torch.linspace(-0.5, 0.5, TRAINED))  # one of its factors starts at zero
    model = copy.deepcopy(build_model(SPEC, TASK, seed=0)).double()
    trained = [p for p in model.parameters() if p.requires_grad]
    torch.nn.utils.vector_to_parameters(engine.theta.double().cpu(), trained)
    x, y = draw(TASK, 9)
    gradients = torch.stack([
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained, retain_graph=True)])
        for loss in cross_entropy(model(x.double()), y, reduction="none")
    ])  # fmt: skip
    for clip_norm in (2 * gradients.norm(dim=1).max(), 0.5 * gradients.norm(dim=1).min()):
        expected = clipped_sum(gradients, float(clip_norm))
        error = (sum_of(engine, x, y, float(clip_norm)) - expected).norm()
        assert error <= 1e-5 * expected.norm()


def test_a_run_sends_them_alone_and_learns() -> None:
    run = RunConfig.parse({
        "dataset": "digits", "model": SPEC, "strategy": "mmse", "rounds": 4, "epsilons": "8",
        "learning-rate": 0.5, "seed": 1,
    })  # fmt: skip
    result = run_in_process(run, 3)
    assert sum(array.size for array in result.arrays.values()) == TRAINED
    assert result.rounds[-1]["metrics"]["accuracy"] > 0.3  # chance: 0.1
