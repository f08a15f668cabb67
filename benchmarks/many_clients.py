"""Cost of plans and registration for many clients with own budgets.

* A plan: the z of a client's (ε, δ), without a cache; by dp-accounting's ``PLDAccountant`` under
the
  same search, by ours, and by the table of the clients' steps, its knots apart and included.
* A simulation of 10,000 clients, 100 a round, ε drawn for each: the time to the first round, and of
  a later one, beside one of 1,000. Random numbers of MNIST's shape, six records a client.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any
from unittest import mock

import numpy as np
from dp_accounting.pld import PLDAccountant

from benchmarks.timing import show
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import Dataset, task_of
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy import accounting, plan_table, pld
from hdpfl_flower.privacy.accounting import Steps
from server_app.in_process.in_process_run import run_in_process

SCHEDULE, DELTA, PLANS = (Steps(0.5, 60),), 1e-5, 24
RECORDS, ASKED, ROUNDS, MOST = 6, 100, 6, 10_000


def main() -> None:
    """Print the tables."""
    _plans()
    _clients()


class _Theirs(PLDAccountant):  # type: ignore[misc]
    def __init__(self, interval: float) -> None:
        super().__init__(value_discretization_interval=interval)


def _plans() -> None:
    epsilons = np.random.default_rng(0).uniform(0.3, 8, PLANS).tolist()
    with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, HDPFL_HOME=home):
        accounting._search(SCHEDULE, 2.0, DELTA)  # imports
        ours = _seconds(lambda e: accounting._search(SCHEDULE, e, DELTA), epsilons)
        with mock.patch.object(pld, "GridAccountant", _Theirs):
            theirs = _seconds(lambda e: accounting._search(SCHEDULE, e, DELTA), epsilons[:3])
        begin = time.process_time()
        for number in range(-5, 8):
            plan_table._knot(SCHEDULE, number, DELTA)
        knots = time.process_time() - begin
        table = _seconds(lambda e: plan_table.calibrate_among_many(SCHEDULE, e, DELTA), epsilons)
        again = _seconds(lambda e: plan_table.calibrate_among_many(SCHEDULE, e, DELTA), epsilons)
    rows = [
        [name, f"{1e3 * seconds:.2f}", f"{seconds / ours:.3f}", bar]
        for name, seconds, bar in (
            ("dp-accounting's own accountant", theirs, ""),
            ("ours", ours, ""),
            ("by the table", table, "≤ 0.45"),
            ("by the table, with its 13 knots, of 1,000 clients", table + knots / 1000, "≤ 0.45"),
            ("known already", again, ""),
        )
    ]
    columns = ["one plan, q = 0.5, 60 steps", "ms", "/ ours", "bar"]
    show("A plan of one of many clients", columns, rows)


def _seconds(plan: Any, epsilons: list[float]) -> float:
    begin = time.process_time()
    for epsilon in epsilons:
        plan(epsilon)
    return (time.process_time() - begin) / len(epsilons)


def _clients() -> None:
    rows = []
    for noise, strategy in (("records", "mmse"), ("server", "dp-fedavg")):
        few, many = (_measured(number, noise, strategy) for number in (1000, MOST))
        each = {key: (many[key] - few[key]) / (MOST - 1000) for key in ("first", "later", "memory")}
        rows.append([
            f"noise = {noise}", f"{many['first']:.1f}", f"{1e6 * each['first']:.0f}",
            f"{many['later'] / few['later']:.2f}", f"{1e6 * each['later']:.1f}",
            f"{each['memory'] / 1e3:.1f}",
        ])  # fmt: skip
    columns = ["", "first round, CPU s", "a client more, µs", "a later round / of 1,000",
               "a client more, µs", "a client more, kB"]  # fmt: skip
    show(f"{MOST:,} clients with an ε each, {ASKED} a round, nothing cached", columns, rows)


def _measured(clients: int, noise: str, strategy: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.many_clients", str(clients), noise, strategy],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _measure(clients: int, noise: str, strategy: str) -> dict[str, float]:
    """Return CPU seconds to the first and of later rounds, and bytes."""
    draws, count, task = np.random.default_rng(0), MOST * RECORDS, task_of("mnist")
    labels = draws.integers(0, 10, count)
    train = Records(draws.random((count, *task.input_shape), dtype=np.float32), labels)
    data, ends = Dataset(task, train, None, None), []

    def on_round(event: dict[str, Any]) -> None:
        if event["event"] == "round":
            ends.append(time.process_time())

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, HDPFL_HOME=folder),
        mock.patch("client_app.site.simulated.load_dataset", lambda *_: data),
        mock.patch("hdpfl_flower.scenarios.partitions.load_dataset", lambda *_: data),
    ):
        config = RunConfig.parse({
            "strategy": strategy, "noise": noise, "model": "logreg", "rounds": ROUNDS,
            "dataset": "mnist", "partition": f"iid:{RECORDS}", "fraction": ASKED / clients,
            "epsilons": "uniform:0.3:8", "batch-sizes": "2,3", "evaluation": "none",
            "runs-dir": folder,
        })  # fmt: skip
        begin = time.process_time()
        run_in_process(config, clients, on_round)
    later = float(np.median(np.diff(ends)))
    memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"first": ends[0] - begin, "later": later, "memory": memory}


if __name__ == "__main__":
    print(json.dumps(_measure(int(sys.argv[1]), sys.argv[2], sys.argv[3])))
