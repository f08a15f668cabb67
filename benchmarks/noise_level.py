"""Noise estimators: cost in read passes and memory, and weight quality.

A read pass is the time of summing a float32 array once. q is the aggregate's noise over the least
possible, 1 being as good as with the true noise.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.recorded import excess, record
from benchmarks.timing import console, interleaved, show
from hdpfl_flower.estimators.noise_level import (
    estimate_noise_levels,
    measure_noise,
    sample_coordinates,
)
from hdpfl_flower.estimators.temporal import KEPT, track

CLIENTS, PARAMETERS = 20, 1_000_000
LARGE = 11_000_000
"""Size of ResNet-18, for which only rows are read."""
Row = npt.NDArray[np.floating]
METHODS = ("column-norm", "factor-analysis", "residual-mad", "rpca", "auto")
LABELS = {"dataset": "mnist", "partition": "pathological:2"}
FOUR = {"rounds": 2, "delta": 1e-5}
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "digits": ({}, 13),
    "heart": ({"dataset": "heart", "partition": "natural"}, 4),
    "MNIST iid": ({"dataset": "mnist", "partition": "iid"}, 20),
    "MNIST ≤ 2 labels": (LABELS, 20),
    "MNIST ≤ 2 labels, lr .1": ({**LABELS, "learning-rate": 0.1, "rounds": 2}, 20),
    "MNIST ≤ 2 labels, n = 4": ({**LABELS, **FOUR}, 4),
    "MNIST ≤ 2 labels, n = 4, lr .1": ({**LABELS, **FOUR, "learning-rate": 0.1}, 4),
}
MNIST = {"delta": 1e-4, "clip-norm": 3.0, "learning-rate": 0.01, "epsilons": "uniform:0.2:10"}
ROUNDS = (1, 2, 10, 50)


SIGNALS = ("weak", "strong rank-1", "4 clusters", "dense private", "sparse private", "heavy tail")


def _signal(name: str, shared: Row, i: int, generator: np.random.Generator) -> Row:
    """Return client ``i``'s signal."""
    d = len(shared)
    private: Row
    match name:
        case "weak":
            return 0.01 * shared
        case "4 clusters":
            return np.roll(shared, i % 4)
        case "dense private":
            private = 0.05 * generator.standard_normal(d)
        case "sparse private":
            private = (generator.random(d) < 0.01) * generator.standard_normal(d)
        case "heavy tail":
            private = 0.03 * generator.standard_t(2.5, d)
        case _:
            return shared
    return shared + private


def signal_class(
    name: str, seed: int, n: int = CLIENTS, d: int = 100_000
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return updates of a signal kind, and their noise variances."""
    generator = np.random.default_rng(seed)
    variances = 10 ** generator.uniform(-3, 0, n)
    shared = generator.standard_normal(d, dtype=np.float32)
    updates = generator.standard_normal((n, d), dtype=np.float32)
    updates *= np.sqrt(variances).astype(np.float32)[:, None]
    for i in range(n):
        updates[i] += _signal(name, shared, i, generator)
    return updates, variances


def main() -> None:
    """Print costs, then q on signal kinds and on recorded updates."""
    _costs()
    _large()
    _classes()
    _recorded()


def _costs() -> None:
    updates, variances = signal_class("strong rank-1", 0, CLIENTS, PARAMETERS)
    rows = []
    for method in ("factor-analysis", "residual-mad", "column-norm"):
        times = interleaved(
            {
                "read pass": lambda: float(updates.sum()),
                "estimate": lambda m=method: estimate_noise_levels(updates, m),  # type: ignore[misc]
            },
            clock=time.perf_counter,
        )
        tracemalloc.start()
        levels = estimate_noise_levels(updates, method)
        memory = tracemalloc.get_traced_memory()[1] / updates.nbytes
        tracemalloc.stop()
        passes = times["estimate"] / times["read pass"]
        bar = "≤ 12, ≤ 0.1" if method == "factor-analysis" else ""
        q = excess(levels, variances)
        rows.append([method, f"{passes:.1f}", f"{memory:.3f}", f"{q:.4f}", bar])
    title = f"Noise levels of {CLIENTS} clients × {PARAMETERS:,} parameters"
    show(title, ["method", "read passes", "extra memory / matrix", "q (oracle = 1)", "bar"], rows)


def _large() -> None:
    updates, variances = signal_class("strong rank-1", 0, CLIENTS, LARGE)

    def sampled() -> npt.NDArray[np.float64]:
        chosen = sample_coordinates(updates, KEPT)
        return estimate_noise_levels(np.take(updates, chosen, axis=1))

    times = interleaved(
        {"one client": lambda: float(updates[0].sum()), "sampled": sampled},
        clock=time.perf_counter,
    )
    show(
        f"Factor analysis of {CLIENTS} clients × {LARGE:,} parameters by {KEPT:,} coordinates",
        ["read passes of one client's update", "q", "bar"],
        [[f"{times['sampled'] / times['one client']:.1f}",
          f"{excess(sampled(), variances):.4f}", "< 3"]],
    )  # fmt: skip


def _classes() -> None:
    rows = []
    for name in SIGNALS:
        found: dict[str, list[float]] = {method: [] for method in METHODS}
        for seed in range(3):
            updates, variances = signal_class(name, seed)
            for method in METHODS:
                found[method].append(excess(estimate_noise_levels(updates, method), variances))
        mean = {method: float(np.mean(found[method])) for method in METHODS}
        best = min(mean[method] for method in METHODS if method != "auto")
        rows.append([name, *(f"{mean[m]:.4f}" for m in METHODS), f"{mean['auto'] / best:.4f}"])
    show(
        f"q by kind of signal, {CLIENTS} clients × 100,000, mean of 3 (auto / best ≤ 1.01)",
        ["signal", *METHODS, "auto / best"],
        rows,
    )


def _recorded() -> None:
    folder, rows = os.environ.get("HDPFL_TEST_DATA", ""), []
    for name, (config, sites) in RUNS.items():
        if name != "digits" and not folder:
            console.print(f"{name}: set HDPFL_TEST_DATA to the folder of its files")
            continue
        extra = {**MNIST, "data-dir": folder} if name.startswith("MNIST") else {"data-dir": folder}
        rounds = record({"rounds": max(ROUNDS), **extra, **config}, sites)
        memory: dict[str, npt.NDArray[np.float64]] = {}
        for updates in rounds:
            after, tracked = track(
                memory, updates.server_round, updates.sites, updates.updates, head=updates.head
            )
            memory = after
            if updates.server_round not in ROUNDS:
                continue
            true = updates.disclosed["noise-std"] ** 2
            one = [excess(measure_noise(updates.updates, m).variances, true) for m in METHODS[:4]]
            p, pairs = updates.updates.shape[1], max(updates.server_round - 1, 1)
            floor = f"{1 + 2 / p:.4f}" if p < 1000 else ""
            first = updates.server_round == 1
            bar = 1.1 if p < 100 else 1.002 + 2 / (p * pairs)  # Heart's is of 5 pairs and more
            bar = 1.05 if first else bar
            rows.append([name, str(updates.server_round), *(f"{q:.4f}" for q in one),
                         f"{excess(tracked.variances, true):.4f}",
                         "–" if first and p < 7_000 else f"≤ {bar:.4f}", floor])  # fmt: skip
    show(
        "q on recorded updates",
        ["run", "round", *METHODS[:4], "auto, over time", "its bar", "floor of a round"],
        rows,
    )
