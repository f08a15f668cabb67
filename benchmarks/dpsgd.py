"""Epoch of local DP-SGD against plain SGD and Opacus.

On the same data.

Plain SGD: the same model and index loop, no noise, no clipping, no DataLoader. Opacus: a
PrivacyEngine made by make_private with Poisson sampling, as in its documentation. One thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.timing import interleaved, show
from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import RoundPlan

RECORDS = 2400
TASK = Task.classification((1, 28, 28), 10)
BARS = {("cnn", 64): "≤ 1.35, ≥ 1.35", ("logreg", 64): "≤ 1.8, ≥ 2.5"}


def main() -> None:
    """Print the ratios on random data of MNIST's shape."""
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    features = generator.random((RECORDS, *TASK.input_shape), dtype=np.float32)
    records = Records(features, generator.integers(0, 10, RECORDS))
    rows = []
    for model in ("logreg", "mlp:32", "cnn"):
        for batch in (16, 64, 128):
            engine = engine_for(model, TASK, "auto", "cpu")
            name = type(engine).__name__.removesuffix("Engine").lower()
            times = interleaved(
                {
                    "plain": plain_epoch(model, records, batch),
                    "ours": our_epoch(model, records, batch, noise_std=1.0),
                    "ours, σ = 0": our_epoch(model, records, batch, noise_std=0.0),
                    "Opacus": opacus_epoch(model, records, batch),
                },
                repeats=7 if model == "cnn" else 15,
            )
            rows.append(
                [
                    f"{model}, batch {batch}",
                    name,
                    f"{times['ours'] / times['plain']:.2f}",
                    f"{(times['ours'] - times['ours, σ = 0']) / times['plain']:.2f}",
                    f"{times['Opacus'] / times['ours']:.2f}",
                    BARS.get((model, batch), ""),
                ]
            )
    columns = [
        "epoch of 2,400 records",
        "engine",
        "ours / plain SGD",
        "of it, noise",
        "Opacus / ours",
        "bar",
    ]
    show("DP-SGD epoch, Poisson sampling and noise included", columns, rows)


def plain_epoch(spec: str, records: Records, batch: int) -> Callable[[], None]:
    """Return an epoch of SGD without privacy."""
    model = build_model(spec, TASK, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)

    def epoch() -> None:
        for _ in range(RECORDS // batch):
            rows = torch.randint(0, RECORDS, (batch,))
            loss = total_loss(TASK, model(x[rows]), y[rows]) / batch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def our_epoch(spec: str, records: Records, batch: int, noise_std: float) -> Callable[[], None]:
    """Return an epoch as a site runs it."""
    engine = engine_for(spec, TASK, "auto", "cpu")
    start = engine.theta.numpy().copy()
    plan = RoundPlan(Steps(batch / RECORDS, RECORDS // batch), 1.0, noise_std, float(batch))

    def epoch() -> None:
        train(engine, start, records, plan, 0.01, ReleaseStreams.fresh(), physical_batch=256)

    return epoch


def opacus_epoch(spec: str, records: Records, batch: int) -> Callable[[], None]:
    """Return an epoch through Opacus' own engine."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    warnings.filterwarnings("ignore", module="opacus|torch")
    warnings.filterwarnings("ignore", "Full backward hook")
    model = build_model(spec, TASK, seed=0)
    x, y = torch.from_numpy(records.features), torch.from_numpy(records.targets)
    private, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    criterion = torch.nn.CrossEntropyLoss()

    def epoch() -> None:
        for features, targets in loader:
            optimizer.zero_grad()
            if len(targets):
                criterion(private(features), targets).backward()
                optimizer.step()

    return epoch
