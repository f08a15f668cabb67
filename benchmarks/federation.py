"""What the in-process federation costs per client and round, training left out."""

from __future__ import annotations

from benchmarks.ready import ready_updates, run_ready
from benchmarks.timing import interleaved, show

CLIENTS, ROUNDS = 20, 20


def main() -> None:
    """Print milliseconds per client and round."""
    rows = []
    for model, size in (("logreg", 650), ("mlp:384", 28_810)):
        updates = ready_updates(CLIENTS * ROUNDS, size)
        variants = {
            strategy: lambda s=strategy, u=updates, m=model: run_ready(  # type: ignore[misc]
                u, CLIENTS, strategy=s, model=m, rounds=ROUNDS
            )
            for strategy in ("fedavg", "robust-hdp")
        }
        times = interleaved(variants, repeats=5)
        for strategy, seconds in times.items():
            cost = 1000 * seconds / CLIENTS / ROUNDS
            rows.append([f"{strategy}, {size:,} parameters", f"{cost:.2f}", "≤ 1"])
    title = f"In-process federation, {CLIENTS} clients × {ROUNDS} rounds, without training"
    show(title, ["", "ms per client and round", "bar"], rows)
