"""DP-SGD round of many clients: stacked, sequential and plain.

The ratios are over sequential training and over plain SGD.

One after another: ``dpsgd.train`` of each client, as a deployed site runs it. Plain SGD: the same
model and number of batches of the same expected size, one client after another, without clipping
and noise. Noise: the steps' noise alone, as the stack draws it. Both private variants draw the same
batches and the same noise, and must end at the same updates. Random numbers of the data's shapes:
time does not depend on them. One thread; with CUDA a row on it, in wall time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.timing import interleaved, show
from client_app.training.dpsgd import train
from client_app.training.engine_choice import engine_for
from client_app.training.stacked_dpsgd import PrivateJob, train_stacked
from client_app.training.stacked_sgd import stack_for
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps
from hdpfl_flower.privacy.noise import ReleaseStreams, normals_of
from hdpfl_flower.privacy.plan import RoundPlan

RATE, PHYSICAL, TOLERANCE = 0.1, 256, 1e-6
DIGITS, MNIST = Task.classification((8, 8), 10), Task.classification((1, 28, 28), 10)
ROWS = (
    ("digits, logreg, 100 clients × 30", DIGITS, "logreg", 100, 30, 10, "≤ 0.15"),
    ("digits, logreg, 20 clients × 108", DIGITS, "logreg", 20, 108, 16, ""),
    ("MNIST, logreg, 100 clients × 30", MNIST, "logreg", 100, 30, 10, "≤ 0.3"),
    ("MNIST, mlp:32, 20 clients × 2,400", MNIST, "mlp:32", 20, 2400, 64, "≤ 0.55"),
)
"""Rows: name, task, model, clients, records, expected batch, bar."""


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rows = []
    for name, task, model, clients, records, batch, bar in ROWS:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            round_of = _Clients(task, model, clients, records, batch, device)
            round_of.check()
            times = interleaved(
                {
                    "stacked": round_of.stacked,
                    "alone": round_of.alone,
                    "plain": round_of.plain(),
                    "noise": round_of.noise,
                },
                repeats=5,
                clock=time.process_time if device == "cpu" else time.perf_counter,
            )
            own = times["stacked"]
            rows.append([
                name + (" (CUDA)" if device == "cuda" else ""),
                f"{1e6 * own / clients / round_of.steps:.0f}",
                f"{own / times['alone']:.2f}", bar if device == "cpu" else "",
                f"{own / times['plain']:.2f}", f"{times['noise'] / own:.2f}",
            ])  # fmt: skip
    columns = [
        "batches of 10, 16, 10, 64", "µs a client's step", "stacked / one after another", "bar",
        "stacked / plain SGD", "noise / stacked",
    ]  # fmt: skip
    show("DP-SGD of many clients at once", columns, rows)


class _Clients:
    """Clients of a round, each with records, noise scale and streams."""

    def __init__(
        self, task: Task, model: str, clients: int, records: int, batch: int, device: str
    ) -> None:
        draws = np.random.default_rng(0)
        self._task, self._spec, self._batch = task, model, batch
        self._engine = engine_for(model, task, "auto", device)
        stack = stack_for(model, task, device)
        if stack is None:
            raise RuntimeError(f"{model} is not stacked")
        self._stack, self._start = stack, self._engine.theta.cpu().numpy().copy()
        self._records = [
            Records(
                draws.random((records, *task.input_shape), dtype=np.float32),
                draws.integers(0, task.outputs, records),
            )
            for _ in range(clients)
        ]
        self.steps = math.ceil(records / batch)
        steps = Steps(batch / records, self.steps)
        self._plans = [
            RoundPlan(steps, 1.0, 1.0 + number / clients, float(batch)) for number in range(clients)
        ]

    def check(self) -> None:
        """Refuse variants that end at different updates."""
        for one, other in zip(self.stacked(), self.alone(), strict=True):
            if not np.linalg.norm(one - other) <= TOLERANCE * np.linalg.norm(other):
                raise RuntimeError(f"{self._spec}: the two end apart")

    def stacked(self) -> list[np.ndarray]:
        jobs = [
            PrivateJob(self._start, records, plan, _streams(number))
            for number, (records, plan) in enumerate(zip(self._records, self._plans, strict=True))
        ]
        return train_stacked(self._stack, jobs, RATE, PHYSICAL)

    def alone(self) -> list[np.ndarray]:
        return [
            train(
                self._engine, self._start, records, plan, RATE, _streams(number), PHYSICAL
            )
            for number, (records, plan) in enumerate(zip(self._records, self._plans, strict=True))
        ]  # fmt: skip

    def noise(self) -> None:
        streams = [_streams(number).noise for number in range(len(self._records))]
        for _ in range(self.steps):
            normals_of(streams, len(self._start)).to(self._engine.theta.device)

    def plain(self) -> Callable[[], None]:
        """Return as many SGD steps without privacy, in batches of b."""
        device = self._engine.theta.device
        model = build_model(self._spec, self._task, seed=0).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

        def run() -> None:
            for records in self._records:
                x = torch.from_numpy(records.features).to(device)
                y = torch.from_numpy(records.targets).to(device)
                for _ in range(self.steps):
                    rows = torch.randint(0, len(x), (self._batch,), device=device)
                    loss = total_loss(self._task, model(x[rows]), y[rows]) / self._batch
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()

        return run


def _streams(number: int) -> ReleaseStreams:
    return ReleaseStreams.simulated(1, str(number), 1, "update")
