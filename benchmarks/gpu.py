"""Step of DP-SGD on a GPU against Opacus' hooks, its ghost clipping and plain SGD.

``python -m benchmarks gpu`` takes the first GPU; with ``HDPFL_DEVICE=cpu`` small models run on the
CPU, which shows that it works and nothing about speed. Wall time, the device waited for.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.timing import interleaved, show
from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import choose_engine
from hdpfl_flower.models.adapters import adapt
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan
from hdpfl_flower.system.devices import present
from hdpfl_flower.work.backbone import ViTB16

STEPS = 4


@dataclass(frozen=True)
class Case:
    """Model and batch of a row."""

    name: str
    task: Task
    build: Callable[[], nn.Module]
    batch: int


def main() -> None:
    """Print one table: milliseconds of plain SGD, all else over it."""
    warnings.filterwarnings("ignore")
    device = torch.device(present(os.environ.get("HDPFL_DEVICE", "cuda")))
    rows = []
    for case in cases(small=device.type == "cpu"):
        draws = np.random.default_rng(0)
        features = draws.random((case.batch, *case.task.input_shape), dtype=np.float32)
        records = Records(features, draws.integers(0, 10, case.batch))
        engine = choose_engine(case.build, case.name, case.task, "auto", str(device))
        variants = {
            "plain": plain(case, records, device),
            "ours": ours(engine, records),
            "noise": noise(len(engine.theta), device),
            "CPU's noise": noise(len(engine.theta), torch.device("cpu"), device),
            "hooks": opacus(case, records, device, "hooks"),
            "ghost": opacus(case, records, device, "ghost"),
        }
        works = {name: waited(run, device) for name, run in variants.items() if runs(run)}
        seconds = interleaved(
            works, repeats=1 if device.type == "cpu" else 5, clock=time.perf_counter
        )
        name = type(engine).__name__.removesuffix("Engine").lower()
        rows.append(
            [
                f"{case.name}, batch {case.batch}",
                name,
                f"{1000 * seconds['plain'] / STEPS:.1f}",
                *(
                    f"{seconds[name] / seconds['plain']:.2f}" if name in seconds else "–"
                    for name in [*variants][1:]
                ),
            ]
        )
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, small models"
    columns = [
        "step",
        "engine",
        "plain SGD, ms",
        "ours / plain",
        "of it, noise",
        "noise by AES",
        "Opacus hooks / plain",
        "Opacus ghost / plain",
    ]
    show(f"DP-SGD step on {where}", columns, rows)


def cases(*, small: bool) -> list[Case]:
    """Return the rows."""
    side, pixels = (32, 8) if small else (224, 32)
    digits = Task.classification((1, 28, 28), 10)
    colour = Task.classification((3, pixels, pixels), 10)
    return [
        Case("CNN", digits, lambda: build_model("cnn", digits, seed=0), 8 if small else 256),
        Case(
            "ResNet-18",
            colour,
            lambda: build_model("resnet18", colour, seed=0),
            2 if small else 128,
        ),
        Case(
            "small ViT, adapters" if small else "ViT-B/16, adapters",
            Task.classification((3, side, side), 10),
            lambda: vit(side),
            4 if small else 32,
        ),
    ]


def vit(side: int) -> nn.Module:
    """Return a vision transformer with adapters of rank 4; its frozen numbers are drawn."""
    from torchvision.models import VisionTransformer

    size = (12, 12, 768, 3072) if side == 224 else (2, 2, 16, 32)
    torch.manual_seed(0)
    network = VisionTransformer(side, 16, *size)
    network.heads = nn.Identity()
    settings = ViTB16(adapter="lora:4")
    return adapt(network.requires_grad_(False), nn.Linear(size[2], 10), settings)


def plain(case: Case, records: Records, device: torch.device) -> Callable[[], None]:
    """Return steps of SGD without privacy."""
    model = case.build().to(device)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            outputs = model(x.to(device))
            torch.nn.functional.cross_entropy(outputs, y.to(device)).backward()
            optimizer.step()

    return steps


def ours(engine: Any, records: Records) -> Callable[[], None]:
    """Return a site's steps, every record in each batch."""
    start, batch = engine.theta.cpu().numpy().copy(), len(records)
    plan = RoundPlan(Steps(1.0, STEPS), 1.0, 1.0, float(batch))
    return lambda: train(engine, start, records, plan, 0.01, ReleaseStreams.fresh(), batch)


def noise(size: int, device: torch.device, to: torch.device | None = None) -> Callable[[], None]:
    """Return the making of the steps' noise on ``device``, copied to ``to``."""

    def steps() -> None:
        stream = RandomStream(os.urandom(32))
        stream.draw_ahead(size, STEPS)
        for _ in range(STEPS):
            stream.normal(size, device).to(to or device)

    return steps


def opacus(case: Case, records: Records, device: torch.device, mode: str) -> Callable[[], None]:
    """Return the steps of Opacus' engine; they fail where it cannot train the model."""

    def prepared() -> Callable[[], None]:
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        model = case.build().to(device).train()
        for module in model.modules():
            if type(module).__name__ == "BasicBlock":
                module.forward = MethodType(_block, module)  # type: ignore[method-assign]
        x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)
        trained = [p for p in model.parameters() if p.requires_grad]
        wrapped: tuple[Any, ...] = PrivacyEngine(accountant="rdp").make_private(
            module=model,
            optimizer=torch.optim.SGD(trained, lr=0.01),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        private, optimizer = wrapped[0], wrapped[1]
        criterion = wrapped[2] if mode == "ghost" else nn.CrossEntropyLoss()

        def steps() -> None:
            for _ in range(STEPS):
                optimizer.zero_grad()
                criterion(private(x.to(device)), y.to(device)).backward()
                optimizer.step()

        return steps

    ready: list[Callable[[], None]] = []

    def run() -> None:
        if not ready:
            ready.append(prepared())
        ready[0]()

    return run


def _block(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Return torchvision's block without its sum in place, which Opacus' hooks forbid."""
    normed = block.bn2(block.conv2(block.relu(block.bn1(block.conv1(x)))))
    out: torch.Tensor = block.relu(normed + (block.downsample(x) if block.downsample else x))
    return out


def runs(variant: Callable[[], None]) -> bool:
    """Return whether a variant can train the model; a first run warms it up."""
    try:
        variant()
    except Exception:
        return False
    return True


def waited(variant: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Return the variant, which ends when the device has."""

    def run() -> None:
        variant()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run
