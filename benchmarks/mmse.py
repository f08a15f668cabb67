"""What MMSE averaging costs beside Robust-HDP, its noise estimate and its sum, in read passes.

A read pass is the time of summing the round's float32 matrix once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.timing import interleaved, show
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from strategies import make_strategy

CLIENTS, SIZE, ROUNDS = 20, 1_000_000, 5
HEADS = {
    "a head of 10 × 33 after a body": Head(SIZE - 330, 10, 32),
    "a head alone, 10 × 100,000": Head(0, 10, SIZE // 10 - 1),
    "no softmax head": None,
}
BAR = 3


def _run(name: str, rounds: list[RoundUpdates]) -> Callable[[], None]:
    def run() -> None:
        strategy = make_strategy(RunConfig.parse({"strategy": name, "local-steps": 1}))
        state = strategy.initial_state()
        for updates in rounds:
            state, _ = strategy.combine(state, updates, RandomStream(bytes(32)))

    return run


def main() -> None:
    """Print the read passes a round."""
    generator = np.random.default_rng(1)
    rows = generator.standard_normal((CLIENTS, SIZE), dtype=np.float32)
    lines = []
    for model, head in HEADS.items():
        first = RoundUpdates(1, tuple(map(str, range(CLIENTS))), rows, head=head)
        rounds = [replace(first, server_round=t) for t in range(1, ROUNDS + 1)]
        variants: dict[str, Callable[[], object]] = {
            "pass": lambda rounds=rounds: [float(one.updates.sum()) for one in rounds],  # type: ignore[misc]
            **{name: _run(name, rounds) for name in ("robust-hdp", "mmse")},
        }
        times = interleaved(variants, repeats=5)
        passes = (times["mmse"] - times["robust-hdp"]) / times["pass"]
        lines.append([model, f"{passes:.1f}", f"≤ {BAR}"])
    show(
        f"MMSE averaging on {CLIENTS} × {SIZE:,}, beside Robust-HDP",
        ["model", "read passes a round", "bar"],
        lines,
    )
