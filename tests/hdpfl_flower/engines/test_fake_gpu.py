"""Training on a device that is not the CPU, without a GPU (``fake_gpu.py``).

Each engine and kind of model gives the CPU's update to the bit without noise; no step waits for
the device or copies more than a batch; and float64 is made by noise and ghost norms alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_app.training.plain_sgd import LocalJob, Network
from hdpfl_flower.engines import dpsgd, engines, ghost_clipping
from hdpfl_flower.engines.engines import Engine, LinearEngine, VmapEngine
from hdpfl_flower.engines.ghost_clipping import BookkeepingEngine
from hdpfl_flower.engines.opacus_engine import OpacusEngine
from hdpfl_flower.models.adapters import adapt
from hdpfl_flower.models.evaluation import count_correct, predict
from hdpfl_flower.models.networks import arrays_of, build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy import noise
from hdpfl_flower.work.backbone import OwnBackbone
from hdpfl_tools.simulation import stacked_dpsgd
from hdpfl_tools.simulation.stacked_dpsgd import PrivateJob
from hdpfl_tools.simulation.stacked_sgd import stack_for
from tests.hdpfl_flower.engines.fake_gpu import NAME, Report, fake_gpu
from tests.hdpfl_flower.engines.oracle import (
    group_norm_net,
    mutant,
    one_thread,  # noqa: F401
    unproven,
)
from tests.hdpfl_flower.engines.updates import RATE, plan_of, streams

IMAGE = Task.classification((1, 12, 12), 3)
FLAT = Task.classification((8,), 3)
COUNT, PHYSICAL = 24, 8
ALLOWED = ("hdpfl_flower/privacy/noise.py", "hdpfl_flower/engines/ghost_clipping.py:ghost_norms",
           "hdpfl_flower/engines/dpsgd.py:train")  # fmt: skip
"""Where float64 is needed: tails and grid of the noise; terms of ghost norms, which cancel; the
sum over physical batches."""


OWN_KERNELS = ("transformer", "lstm", "cnn", "group norm")


class Sequences(nn.Module):
    """Rows of an image as a sequence, read by ``inner``."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x.flatten(1, 2)[:, :4])
        outputs: torch.Tensor = self.head((found[0] if isinstance(found, tuple) else found)[:, -1])
        return outputs


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(100, 3)
    )


def adapted() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 6))
    settings = OwnBackbone(function="a:b", width=6, adapter="lora:2")
    assert settings is not None
    return adapt(body.requires_grad_(False), nn.Linear(6, 3), settings)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[type[Engine], ...]]] = {
    "linear": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 3)),
        (LinearEngine, BookkeepingEngine, VmapEngine, OpacusEngine),
    ),
    "mlp": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 3)),
        (BookkeepingEngine, VmapEngine, OpacusEngine),
    ),
    "cnn": (cnn, (BookkeepingEngine, VmapEngine, OpacusEngine)),
    "group norm": (lambda: group_norm_net(IMAGE), (BookkeepingEngine, VmapEngine, OpacusEngine)),
    "lstm": (lambda: Sequences(nn.LSTM(12, 5, batch_first=True), 5), (VmapEngine,)),
    "transformer": (
        lambda: Sequences(nn.TransformerEncoderLayer(12, 2, 16, 0.0, batch_first=True), 12),
        (VmapEngine,),
    ),
    "adapter": (adapted, (VmapEngine,)),
}
CASES = [(kind, engine) for kind, (_, known) in MODELS.items() for engine in known]


def records_of(task: Task) -> Records:
    draws = np.random.default_rng(1)
    x = draws.standard_normal((COUNT, *task.input_shape), np.float32)
    x[5] = np.nan  # a record that adds nothing, and is not asked about
    return Records(x, draws.integers(0, 3, COUNT))


def update_of(
    make: Callable[[], nn.Module],
    engine_class: type[Engine],
    device: str,
    *,
    steps: int = 1,
    noise_std: float = 0.0,
    module: Any = dpsgd,
    report: Report | None = None,
) -> np.ndarray:
    """Return the update of some steps; ``report`` then says of the steps alone."""
    torch.manual_seed(0)
    engine = engine_class(make(), IMAGE, torch.device(device))
    start = engine.theta.cpu().numpy().copy()
    plan = plan_of(q=1.0, steps=steps, noise_std=noise_std)
    if report is not None:
        report.__init__()  # type: ignore[misc]
    found: np.ndarray = module.train(
        engine, start, records_of(IMAGE), plan, RATE, streams(), PHYSICAL
    )
    return found


@pytest.mark.parametrize(("kind", "engine"), CASES)
def test_another_device_gives_the_update_of_the_cpu(kind: str, engine: type[Engine]) -> None:
    make = MODELS[kind][0]
    with unproven():
        expected = update_of(make, engine, "cpu")
        with fake_gpu() as report:
            found = update_of(make, engine, NAME, report=report)
    # Attention, the cell of an LSTM and gradients of convolutions have kernels of their own there.
    assert np.abs(found - expected).max() <= (1e-6 if kind in OWN_KERNELS else 0)
    assert np.abs(expected).max() > 1e-3
    check_steps(report)


def check_steps(report: Report) -> None:
    """One copy of the model to the device, one back; batches otherwise, that nobody waits for."""
    assert report.waits == {"copy hdpfl_flower/engines/dpsgd.py:train": 2}
    assert report.largest <= max(PHYSICAL * 144, 20_000)
    assert [place for place in report.doubles if not place.startswith(ALLOWED)] == []


def check_noise_is_rehearsed(monkeypatch: pytest.MonkeyPatch, rehearse: Any) -> None:
    """What takes memory there is tried before a release is charged: the largest piece of noise."""
    made = list[int]()
    real = noise.normals_of

    def counted(keys: Any, count: int, device: Any = None) -> torch.Tensor:
        made.append(len(keys) * count)
        return real(keys, count, device)

    monkeypatch.setattr(noise, "normals_of", counted)
    monkeypatch.setattr(noise, "_ON_DEVICE", 5000)
    with fake_gpu():
        engine = LinearEngine(MODELS["linear"][0](), IMAGE, torch.device(NAME))
        rehearse(engine, 8)
    size = len(engine.theta)
    assert made == [5000 // size * size]


def test_noise_is_rehearsed_with_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_noise_is_rehearsed(monkeypatch, engines.rehearse)


def test_noise_that_is_not_rehearsed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = mutant(engines, ('if total.device.type != "cpu":', "if False:"))
    with pytest.raises(AssertionError):
        check_noise_is_rehearsed(monkeypatch, broken.rehearse)


BUGS = {
    "asks each batch": (
        engines,
        'return finite.device.type == "cpu" and bool(finite.all())',
        "return bool(finite.all())",
    ),
    "noise of the CPU": (
        dpsgd,
        "add_noise(total[place], plan.noise_std, streams.noise)",
        "total[place] + streams.noise.normal(len(total[place])).to(device)",
    ),
    "copies all records": (
        dpsgd,
        "(rows_on(tensor, indices, total.device) for tensor in tensors)",
        "(tensor.to(total.device).index_select(0, indices.to(total.device)) for tensor in tensors)",
    ),
    "ranks in float64": (
        engines,
        "finite = torch.isfinite(squared_norm)",
        "finite = torch.isfinite(squared_norm.double())",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_of_them_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = BUGS[bug]
    broken = mutant(module, (old, new))
    if module is engines:
        for name in ("all_known", "clip_factor"):
            monkeypatch.setattr(ghost_clipping, name, getattr(broken, name))
    with unproven(), fake_gpu() as report:
        update_of(
            MODELS["mlp"][0],
            BookkeepingEngine,
            NAME,
            report=report,
            noise_std=0.4,
            module=broken if module is dpsgd else dpsgd,
        )
        with pytest.raises(AssertionError):
            check_steps(report)


def test_tensors_of_two_devices_are_refused() -> None:
    with fake_gpu(), pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=NAME) + torch.ones(3)


def test_rows_are_proven_on_the_device() -> None:
    """With the trial of rows: its digests come back, a batch's numbers do not."""
    make = MODELS["linear"][0]
    expected = update_of(make, LinearEngine, "cpu")
    with fake_gpu():
        assert np.array_equal(update_of(make, LinearEngine, NAME), expected)


def test_plain_sgd_and_models_are_computed_there() -> None:
    records = records_of(FLAT)
    records.features[5] = 0
    start = np.concatenate([a.ravel() for a in arrays_of(build_model("mlp:4", FLAT, 0)).values()])
    job = LocalJob(start, records, (np.arange(8), np.arange(8, 24)), pull=(0.1, start * 0))
    arrays = arrays_of(build_model("mlp:4", FLAT, 0))
    expected = Network("mlp:4", FLAT, "cpu").train(job, RATE)
    with fake_gpu() as report:
        network = Network("mlp:4", FLAT, NAME)
        report.waits.clear()
        assert np.array_equal(network.train(job, RATE), expected)
        assert report.waits == {"copy client_app/training/plain_sgd.py:train": 3}
        for count in (predict, lambda *a: count_correct(*a[:3], records, a[4])):
            found, known = (
                count("mlp:4", FLAT, arrays, records.features, device) for device in (NAME, "cpu")
            )
            assert np.array_equal(found, known)


def test_stacked_clients_are_trained_there() -> None:
    records = records_of(FLAT)
    start = np.concatenate([a.ravel() for a in arrays_of(build_model("mlp:4", FLAT, 0)).values()])
    found = {}
    with fake_gpu() as report:
        for device in ("cpu", NAME):
            stack = stack_for("mlp:4", FLAT, device)
            assert stack is not None
            plan = plan_of(q=0.5, steps=2, divisor=12.0)
            jobs = [PrivateJob(start, records, plan, streams()) for _ in range(3)]
            report.waits.clear()
            found[device] = stacked_dpsgd.train_stacked(stack, jobs, RATE, PHYSICAL)
    assert np.array_equal(found[NAME], found["cpu"])
    assert report.waits == {"copy hdpfl_tools/simulation/stacked_dpsgd.py:run": 1}
