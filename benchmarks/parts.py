"""What a personal part adds to a client's round: paired runs of the same rounds without one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from benchmarks.timing import interleaved, show
from hdpfl_flower.config.run_config import RunConfig
from server_app.simulation.in_process_run import run_in_process

CLIENTS, ROUNDS, STEPS = 20, 20, 5
STRATEGIES = ("fedavg", "fedper", "fedrep", "fedbabu", "ppsgd", "dsu")
BAR = 1.1


def rounds_of(strategy: str, model: str) -> Callable[[], None]:
    """Return the rounds of a run under ``strategy``: training, ledgers, parts and aggregation."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            config = RunConfig.parse({
                "strategy": strategy, "model": model, "dataset": "digits", "rounds": ROUNDS,
                "local-steps": STEPS, "batch-sizes": "32", "epsilons": "2", "evaluation": "none",
                "runs-dir": folder, "run-id": "r", "torch-threads": 1,
            })  # fmt: skip
            run_in_process(config, CLIENTS)

    return run


def main() -> None:
    """Print milliseconds per client and round, and the ratio to FedAvg's."""
    rows = []
    for model, size in (("mlp:32", 2_410), ("mlp:384", 28_810)):
        times = interleaved({name: rounds_of(name, model) for name in STRATEGIES}, repeats=5)
        for name, seconds in times.items():
            ratio = seconds / times["fedavg"]
            rows.append([
                f"{name}, {size:,} parameters", f"{1000 * seconds / CLIENTS / ROUNDS:.2f}",
                f"{ratio:.2f}", "" if name == "fedavg" else f"≤ {BAR}",
            ])  # fmt: skip
    title = f"A client's round of {STEPS} steps with a personal part, {CLIENTS} clients"
    show(title, ["", "ms per client and round", "/ fedavg", "bar"], rows)
