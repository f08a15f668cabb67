"""What a round with several models costs beside a round with one, training left out.

Training is replaced by ready updates, as in ``federation.py``; the clusters are known, or found in
the first round.
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

SIZES, ROUNDS = (3, 6, 6, 6), 20
CLIENTS, PARAMETERS = sum(SIZES), 28_810
RULES = ("fedavg", "oracle-clusters", "r-dpcfl")


def main() -> None:
    """Print milliseconds per client and round, and what the sites are sent."""
    sent: dict[str, float] = {}
    generator = np.random.default_rng(0)
    updates = cycle(generator.standard_normal((CLIENTS * ROUNDS, PARAMETERS), dtype=np.float32))
    variants = {
        rule: lambda r=rule: sent.update({r: _run(r, updates)})  # type: ignore[misc]
        for rule in RULES
    }
    times = interleaved(variants, repeats=5)
    plain = times["fedavg"]
    rows = [
        [
            rule,
            f"{1000 * times[rule] / CLIENTS / ROUNDS:.2f}",
            f"{times[rule] / plain:.2f}",
            f"{sent[rule] / (4 * PARAMETERS * CLIENTS * ROUNDS):.3f}",
        ]
        for rule in RULES
    ]
    title = f"{CLIENTS} clients in {len(SIZES)} groups × {ROUNDS} rounds, without training"
    show(title, ["", "ms per client and round", "/ fedavg", "models sent to a client"], rows)


def _run(rule: str, updates: Iterator[np.ndarray]) -> float:
    """Return the bytes that went down in all rounds."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("client_app.training.train", lambda *_, **__: next(updates)),
    ):
        terms = {
            "strategy": rule, "model": "mlp:384", "rounds": ROUNDS, "runs-dir": folder,
            "evaluation": "none", "epsilons": "1", "batch-sizes": "16", "partition": "iid",
            "groups": "rotation:" + ":".join(map(str, SIZES)), "clusters": len(SIZES),
            "selection-share": 0.0,
        }  # fmt: skip
        rounds = run_in_process(RunTerms.parse(terms), CLIENTS).rounds
    return float(sum(event["bytes_down"] for event in rounds))
