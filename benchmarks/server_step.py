"""What a server step and a splitting cost beside the weights, in read passes of the updates.

A read pass is the time of summing the round's float32 matrix once. Each strategy combines the same
ready rounds and moves the model; the time of its weights alone is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.timing import interleaved, show
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from strategies import make_strategy

CLIENTS, SIZE, ROUNDS = 20, 1_000_000, 5
WEIGHTS = "fedavg"
STRATEGIES = (
    "fedavg+momentum",
    "fedavg+adam",
    "fedavg+yogi",
    "fedavg+anderson",
    "fedprox",
    "fedpi",
    "fedsplit",
    "scaffold",
)
BARS = {"fedpi": 20, "fedsplit": 20}
"""Above the bar of all others: they read and write a float64 and a float32 vector a client."""


def rounds_of(name: str, rounds: list[RoundUpdates]) -> Callable[[], None]:
    """Return the rounds of strategy ``name`` on ready updates, from its initial state."""

    def run() -> None:
        strategy = make_strategy(RunConfig.parse({"strategy": name, "local-steps": 1}))
        state, moved = strategy.initial_state(), strategy.step.initial_state()
        for updates in rounds:
            state, outcome = strategy.combine(state, updates, RandomStream(bytes(32)))
            moved, _ = strategy.step.move(moved, outcome, updates)

    return run


def main() -> None:
    """Print the read passes a round."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((CLIENTS, SIZE), dtype=np.float32)
    first = RoundUpdates(1, tuple(map(str, range(CLIENTS))), rows)
    rounds = [replace(first, server_round=t) for t in range(1, ROUNDS + 1)]
    variants: dict[str, Callable[[], object]] = {
        "pass": lambda: [float(one.updates.sum()) for one in rounds],
        **{name: rounds_of(name, rounds) for name in (WEIGHTS, *STRATEGIES)},
    }
    times = interleaved(variants, repeats=5)
    beside = {name: (times[name] - times[WEIGHTS]) / times["pass"] for name in STRATEGIES}
    show(
        f"Server steps on {CLIENTS} × {SIZE:,}, beside the weights",
        ["strategy", "read passes a round", "bar"],
        [[name, f"{passes:.1f}", f"≤ {BARS.get(name, 4)}"] for name, passes in beside.items()],
    )
