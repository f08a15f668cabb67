"""What rounded uploads and downloads save in bytes, and what they add to real updates' noise."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recorded import record
from benchmarks.timing import interleaved, show
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.rounding import Form, Vector, read_rounded, round_vector
from server_app.simulation.in_process_run import run_in_process

CLIENTS, ROUNDS, STEPS, SEEDS = 10, 15, 20, (1, 2, 3)
EPSILONS = ",".join(["0.5", "2", "8"] * 4).removesuffix(",2,8")
FORMS: tuple[Form, ...] = ("bfloat16", "int8")
BOTH = {
    "float32": ("float32", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int8", "float32"),
    "int8, and bfloat16 down": ("int8", "bfloat16"),
    "int8, both ways": ("int8", "int8"),
}
"""Row → ``upload`` and ``download``."""


def config_of(dataset: str, model: str, data: str) -> dict[str, Any]:
    """Return the config of a run with budgets from strict to loose."""
    return {
        "dataset": dataset, "model": model, "rounds": ROUNDS, "local-steps": STEPS,
        "batch-sizes": "64", "epsilons": EPSILONS, "run-id": "r", "torch-threads": 1,
        **({"data-dir": data} if data else {}),
    }  # fmt: skip


def added_power(config: dict[str, Any], form: Form) -> tuple[float, float]:
    """Return the rounding's power over the updates', in all; and over the noise's, at most."""
    stream, error, power, worst = RandomStream(bytes(32)), 0.0, 0.0, 0.0
    for updates in record({**config, "seed": 1}, CLIENTS):
        for row, std in zip(updates.updates, updates.disclosed["noise-std"], strict=True):
            read = read_rounded(round_vector(row, form, stream.bytes), len(row), form)
            added = float(np.sum(np.square(read - row.astype(np.float64))))
            error, power = error + added, power + float(np.sum(np.square(row, dtype=np.float64)))
            worst = max(worst, added / (len(row) * float(std) ** 2))
    return error / power, worst


def accuracy_and_bytes(config: dict[str, Any], forms: tuple[str, str]) -> list[float]:
    """Return mean accuracy, its spread over the seeds, and bytes up and down a client and round."""
    found, up, down = [], 0.0, 0.0
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            result = run_in_process(
                RunConfig.parse({
                    **config, "upload": forms[0], "download": forms[1], "seed": seed,
                    "runs-dir": folder,
                }),
                CLIENTS,
            )  # fmt: skip
        last = result.rounds[-1]
        found.append(float(last["metrics"]["accuracy"]))
        up, down = last["bytes_up"] / CLIENTS, last["bytes_down"] / CLIENTS
    return [statistics.mean(found), statistics.stdev(found), up, down]


def main() -> None:
    """Print bytes, accuracy and added power by form, and what rounding takes."""
    data = os.environ.get("HDPFL_TEST_DATA", "")
    cases = [("digits", "logreg")]
    if data and (Path(data) / "MNIST" / "raw").is_dir():
        cases += [("mnist", "logreg"), ("mnist", "mlp:32")]
    for dataset, model in cases:
        config, rows = config_of(dataset, model, data), []
        for name, forms in BOTH.items():
            mean, spread, up, down = accuracy_and_bytes(config, forms)
            shares = ["0", "0"]
            if forms[0] != "float32" and forms[1] == "float32":
                shares = [f"{share:.1e}" for share in added_power(config, forms[0])]  # type: ignore[arg-type]
            shares = shares if forms[1] == "float32" else ["", ""]
            rows.append([name, f"{up:,.0f}", f"{down:,.0f}", f"{mean:.4f} ± {spread:.4f}", *shares])
        show(
            f"{dataset}, {model}: {CLIENTS} clients of ε .5, 2 and 8, {ROUNDS} rounds",
            ["upload", "bytes up", "bytes down", "accuracy", "added / update", "added / noise"],
            rows,
        )
    _times()


def _round(row: Vector, form: Form) -> bytes:
    return round_vector(row, form, RandomStream(bytes(32)).bytes)


def _times() -> None:
    size = 1_000_000
    row = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    rounded = {form: _round(row, form) for form in FORMS}
    variants: dict[str, Callable[[], object]] = {
        "noise of one step": lambda: RandomStream(bytes(32)).normal(size)
    }
    for form in FORMS:
        variants[f"{form}, round"] = partial(_round, row, form)
        variants[f"{form}, read"] = partial(read_rounded, rounded[form], size, form)
    times = interleaved(variants)
    noise = times["noise of one step"]
    rows = [[name, f"{1e9 * t / size:.1f}", f"{t / noise:.2f}"] for name, t in times.items()]
    show("Rounding a vector of a million numbers", ["", "ns a number", "/ noise"], rows)
