"""Round cost of 2,000 simulated clients, 100 asked per round.

Each has 30 records.

Every client's update is clipped, the server adds the noise; MNIST split by label where
``HDPFL_TEST_DATA`` names it, else random numbers of its shape. One thread.

* Training alone: the clients of a round stacked, over the same clients one after another.
* A round, test left out, over its pure training: a plain loop of torch over the same batches.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.timing import interleaved, show
from client_app.training.plain_sgd import LocalJob, network_for, shuffled_batches
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_of
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.networks import build_model
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_tools.simulation.datasets import Dataset
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.stacked_sgd import stack_for

CLIENTS, ASKED, RECORDS, BATCH, RATE, ROUNDS = 2000, 100, 30, 10, 0.1, 9
TASK = task_of("mnist")
_FOLDER = os.environ.get("HDPFL_TEST_DATA", "")
HAS_MNIST = (Path(_FOLDER) / "MNIST" / "raw").is_dir()


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    _training()
    _rounds()


def _training() -> None:
    rows = []
    for model, bar in (("logreg", 0.5), ("mlp:50", 0.5), ("mlp:200", None)):
        network, stack = network_for(model, TASK, "cpu"), stack_for(model, TASK, "cpu")
        if stack is None:
            raise RuntimeError(f"{model} is not stacked")
        jobs = _jobs(network.theta.numpy().copy())
        times = interleaved(
            {
                "alone": lambda n=network, j=jobs: [n.train(job, RATE) for job in j],
                "stacked": lambda s=stack, j=jobs: s.train(j, RATE),
            }
        )
        ratio = times["stacked"] / times["alone"]
        rows.append([model, f"{ratio:.2f}", "" if bar is None else f"≤ {bar}"])
    title = f"Local SGD of {ASKED} clients × {RECORDS} records, batches of {BATCH}"
    show(title, ["model", "stacked / one after another", "bar"], rows)


def _jobs(start: np.ndarray) -> list[LocalJob]:
    draws, jobs = np.random.default_rng(0), []
    for number in range(ASKED):
        features = draws.random((RECORDS, *TASK.input_shape), dtype=np.float32)
        stream = RandomStream(bytes(30) + number.to_bytes(2, "big"))
        batches = tuple(shuffled_batches(RECORDS, BATCH, 1, 0, stream))
        jobs.append(LocalJob(start, Records(features, draws.integers(0, 10, RECORDS)), batches))
    return jobs


def _rounds() -> None:
    rows = []
    for model, personal, bar in (
        ("logreg", "", ""),
        ("mlp:50", "", ""),
        ("mlp:50", "0.05", ""),
        ("cnn", "", "≤ 1.2"),
        ("cnn", "0.05", "≤ 2.2"),
    ):
        alone = _round_over_training(model, personal, stacked=False)
        together = None if model == "cnn" else _round_over_training(model, personal, stacked=True)
        name = model + (", and personal models" if personal else "")
        rows.append([name, f"{alone:.2f}", f"{together:.2f}" if together else "–", bar])
    columns = ["model", "one after another", "stacked", "bar"]
    show(f"A round of {ASKED} of {CLIENTS:,} clients / pure training of the {ASKED}", columns, rows)


def _round_over_training(model: str, personal: str, *, stacked: bool) -> float:
    """Return the median ratio of rounds to their pure training, run alternately."""
    train, ratios, begin = _plain_training(model), [], [0.0, 0]

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "round":
            spent, count = time.process_time() - begin[0], len(event["accepted"])
            before = time.process_time()
            train(count)
            ratios.append(spent / (time.process_time() - before))
        begin[0] = time.process_time()

    train(ASKED)
    with _federation(), mock.patch.object(LocalGrid, "stacked", stacked):
        _run(model, CLIENTS, ASKED / CLIENTS, ROUNDS, heard, personal)
    return float(np.median(ratios[1:]))


def _plain_training(model: str) -> Callable[[int], None]:
    """Return the reference loop: pure torch, one epoch per client."""
    network = build_model(model, TASK, seed=0)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    records = _jobs(np.zeros(1, np.float32))

    def train(clients: int) -> None:
        for number in range(clients):
            job = records[number % len(records)]
            network.load_state_dict(start)
            optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
            x, y = torch.from_numpy(job.records.features), torch.from_numpy(job.records.targets)
            for rows in job.batches:
                place = torch.from_numpy(rows)
                optimizer.zero_grad()
                (total_loss(TASK, network(x[place]), y[place]) / len(rows)).backward()
                optimizer.step()

    return train


@contextmanager
def _federation() -> Iterator[None]:
    """Replace MNIST by random numbers if its files are missing."""
    if HAS_MNIST:
        yield
        return
    draws, count = np.random.default_rng(0), CLIENTS * RECORDS
    labels = draws.integers(0, 10, count)
    train = Records(draws.random((count, *TASK.input_shape), dtype=np.float32), labels)
    data = Dataset(TASK, train, None, None)
    with mock.patch("hdpfl_tools.simulation.own_data.dataset.load_dataset", lambda *_: data):
        yield


def _run(
    model: str,
    clients: int,
    fraction: float,
    rounds: int,
    heard: Callable[..., None],
    personal: str = "",
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        terms = {
            "strategy": "fedhdp",
            "noise": "server",
            "model": model,
            "rounds": rounds,
            "dataset": "mnist",
            "data-dir": _FOLDER,
            "partition": "shards:1",
            "fraction": fraction,
            "epsilons": "3.6+opt-out:0.05",
            "batch-sizes": str(BATCH),
            "delta": 1e-4,
            "clip-norm": 0.5,
            "learning-rate": RATE,
            "fedhdp.level-ratio": "0.1",
            "evaluation": "none",
            "runs-dir": folder,
            **({"second.kind": "kept", "second.pull": float(personal)} if personal else {}),
        }
        run_in_process(RunConfig.parse(terms), clients, heard)
