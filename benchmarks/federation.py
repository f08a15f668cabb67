"""What the in-process federation costs per client and round, training left out.

Everything else is the product's own: messages, terms, ledger, checks, aggregation, journal.
Training is replaced by ready updates, with noise of their own in each round as honest ones have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import cycle
from unittest import mock

import numpy as np

from benchmarks.timing import interleaved, show
from hdpfl_flower.config import RunTerms
from server_app.local import run_in_process

CLIENTS, ROUNDS = 20, 20


def main() -> None:
    """Print milliseconds per client and round."""
    rows = []
    for model, size in (("logreg", 650), ("mlp:384", 28_810)):
        generator = np.random.default_rng(0)
        updates = cycle(generator.standard_normal((CLIENTS * ROUNDS, size), dtype=np.float32))
        variants = {
            strategy: lambda s=strategy, u=updates, m=model: _run(s, m, u)  # type: ignore[misc]
            for strategy in ("fedavg", "robust-hdp")
        }
        times = interleaved(variants, repeats=5)
        for strategy, seconds in times.items():
            cost = 1000 * seconds / CLIENTS / ROUNDS
            rows.append([f"{strategy}, {size:,} parameters", f"{cost:.2f}", "≤ 1"])
    title = f"In-process federation, {CLIENTS} clients × {ROUNDS} rounds, without training"
    show(title, ["", "ms per client and round", "bar"], rows)


def _run(strategy: str, model: str, updates: Iterator[np.ndarray]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("client_app.training.train", lambda *_: next(updates)),
    ):
        terms = {"strategy": strategy, "model": model, "rounds": ROUNDS, "runs-dir": folder,
                 "evaluation": "none", "epsilons": "1", "batch-sizes": "16"}  # fmt: skip
        run_in_process(RunTerms.parse(terms), CLIENTS)
