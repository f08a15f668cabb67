"""What a round with several models costs beside a round with one, training left out.

The clusters are known, found in the first round, or looked for round after round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.ready import ready_updates, run_ready
from benchmarks.timing import interleaved, show
from strategies import check_strategy

SIZES, ROUNDS = (3, 6, 6, 6), 20
CLIENTS, PARAMETERS = sum(SIZES), 28_810
RULES = ("fedavg", "oracle-clusters", "r-dpcfl", "late-clusters")


def main() -> None:
    """Print milliseconds per client and round, and what the sites are sent."""
    sent: dict[str, float] = {}
    updates = ready_updates(CLIENTS * ROUNDS, PARAMETERS)
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
    terms = {
        "strategy": rule, "model": "mlp:384", "rounds": ROUNDS, "partition": "iid",
        "groups": "rotation:" + ":".join(map(str, SIZES)), "selection-share": 0.0,
    }  # fmt: skip
    if "clusters" in check_strategy(rule).settings_type.keys():  # noqa: SIM118 - no dictionary
        terms[f"{rule}.clusters"] = len(SIZES)
    return float(sum(event["bytes_down"] for event in run_ready(updates, CLIENTS, **terms).rounds))
