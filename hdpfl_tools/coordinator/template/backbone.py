"""Public network under the model of all sites: ``python -m PACKAGE.backbone`` trains it again.

It is frozen in a run: sites train a linear model of its outputs, add noise to it and send it. Train
the network only on public records, because no ε covers its numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from hdpfl_flower.models.task import Task

WIDTH, EPOCHS = 32, 30
FILE = "public.safetensors"


def body(_: Task | None = None) -> nn.Module:
    """Return the layers from an image ``(1, 8, 8)`` to ``WIDTH`` numbers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 16, WIDTH),
        nn.ReLU(),
    )


def public_records() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images ``(n, 1, 8, 8)`` and classes: every second of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().div(16).view(-1, 1, 8, 8)
    return images[::2], torch.from_numpy(targets).long()[::2]


def write_weights(file: Path) -> None:
    """Train the layers on the public records, and write their numbers to ``file``."""
    images, classes = public_records()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = body()
        model = nn.Sequential(layers, nn.Linear(WIDTH, int(classes.max()) + 1))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(EPOCHS):
            for rows in torch.split(torch.randperm(len(images)), 32):
                optimizer.zero_grad()
                loss: Any = functional.cross_entropy(model(images[rows]), classes[rows])
                loss.backward()
                optimizer.step()
    save_file(layers.state_dict(), file)


if __name__ == "__main__":
    write_weights(Path(FILE))
