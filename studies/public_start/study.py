"""Public weights against random ones: the same records, noise and strategies.

The public weights are those of a small CNN trained on scikit-learn's 1,797 digits of 8×8, drawn as
MNIST's are; it has seen no record of MNIST.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.weight_files import add_weights
from studies.framework.study import Findings, GridStudy, Options, Setting

if TYPE_CHECKING:
    import torch
    from torch import nn

WIDTH = 64
SITES, RECORDS = 10, 600
MEAN, STD = 0.1307, 0.3081
"""MNIST's public scaling."""
EPOCHS, SHIFT = 30, 2
"""Epochs of public training, and pixels by which each batch is shifted at most."""


def body(_: Task | None = None) -> nn.Sequential:
    """Return a CNN's layers below its last one: images 1×28×28 to 64 numbers."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, WIDTH), nn.ReLU(),
    )  # fmt: skip


def network(task: Task | None = None) -> nn.Sequential:
    """Return the whole CNN, for ten classes."""
    from torch import nn

    return nn.Sequential(body(), nn.Linear(WIDTH, task.outputs if task else 10))


def train_on_digits(seed: int = 1) -> nn.Sequential:
    """Return the CNN trained on scikit-learn's digits, without privacy; they are public."""
    import torch
    from torch.nn import functional

    data = load_dataset("digits", "")
    parts = [data.train] if data.test is None else [data.train, data.test]
    x = torch.from_numpy(np.concatenate([part.features for part in parts]))
    y = torch.from_numpy(np.concatenate([part.targets for part in parts]))
    grown = functional.interpolate(x, (20, 20), mode="bicubic").clamp(0, 1)
    x = (functional.pad(grown, (4, 4, 4, 4)) - MEAN) / STD
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(EPOCHS):
            order = torch.randperm(len(x))
            for start in range(0, len(x), 64):
                batch = order[start : start + 64]
                loss: Any = functional.cross_entropy(model(_shifted(x[batch])), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model


def _shifted(images: torch.Tensor) -> torch.Tensor:
    import torch

    across, down = (int(torch.randint(-SHIFT, SHIFT + 1, ())) for _ in range(2))
    return torch.roll(images, (down, across), (2, 3))


def _rows(whole: str, frozen: str) -> tuple[Setting, ...]:
    """Return each start under each strategy; the arguments are digests of weights."""
    mine = f"{__name__}:network"
    starts = {
        "pixels": {"model": "logreg"},
        "CNN": {"model": mine},
        "public CNN": {"model": mine, "start": whole},
        "public CNN with a new last layer": {"model": mine, "start": whole, "start-parts": "body"},
        "frozen public CNN": {
            "model": "logreg",
            "backbone": f"own function={__name__}:body width={WIDTH} weights={frozen}",
        },
        "public CNN with adapters": {
            "model": "logreg",
            "backbone": f"own function={__name__}:body width={WIDTH} weights={frozen} "
            "adapter=lora:4",
        },
    }
    return tuple(
        Setting(f"{label}: {strategy}", {**config, "strategy": strategy}, sites=SITES)
        for label, config in starts.items()
        for strategy in ("mmse", "fedavg")
    )


@dataclass(frozen=True, kw_only=True)
class PublicStart(GridStudy):
    """Study whose rows start from weights that it trains first."""

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Train on the public digits, then run the grid."""
        from safetensors.torch import save_file

        model, digests = train_on_digits(), []
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in (("whole", model), ("body", model[0])):
            file = folder / f"{name}.safetensors"
            save_file(part.state_dict(), file)
            digests.append(add_weights(file))
        grid = replace(self, rows=_rows(*digests))
        return super(PublicStart, grid).conduct(options, folder)


PUBLIC_START = PublicStart(
    name="public-start",
    title="MNIST from public weights of scikit-learn's digits",
    source="ours (no paper)",
    minutes=6,
    base={
        "dataset": "mnist",
        "partition": f"iid:{RECORDS}",
        "batch-sizes": "60",
        "delta": 1e-4,
        "rounds": 15,
    },
    rows=_rows(*(f"sha256:{digit * 64}" for digit in "01")),  # the study makes the files
    columns=tuple(
        Setting(f"ε {epsilon}", {"epsilons": epsilon}, sites=SITES) for epsilon in ("0.3", "1", "3")
    ),
    quick_columns=("ε 1",),
    noises=("pld",),
    rates=(0.1, 0.3, 1.0, 3.0),
    quick_rates=(0.3,),
    picture="columns",
)
