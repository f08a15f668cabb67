"""Seconds of one calibration, nothing cached, over the range that the plan promises."""

from __future__ import annotations

import time

from benchmarks.timing import show
from hdpfl_flower.privacy import accounting
from hdpfl_flower.privacy.accounting import Steps

CASES = [(0.3, 0.15, 140), (1.0, 0.02, 5_000), (0.15, 16 / 2400, 30_000), (8.0, 0.04, 2_250),
         (0.1, 0.001, 200_000), (1.0, 1.0, 200)]  # fmt: skip


def main() -> None:
    """Print seconds and the noise multiplier."""
    rows = []
    for epsilon, probability, steps in CASES:
        schedule = (Steps(probability, steps),)
        accounting.epsilon_of(accounting.event_of(schedule, 5.0), 1e-5, 1e-3)  # imports
        begin = time.perf_counter()
        multiplier = accounting._search(schedule, epsilon, 1e-5)  # past the cache
        seconds = time.perf_counter() - begin
        rows.append(
            [
                f"ε {epsilon}, q {probability:.4g}, {steps:,} steps",
                f"{seconds:.2f}",
                f"{multiplier:g}",
            ]
        )
    show("Calibration at δ = 1e-5, by PLD", ["", "seconds", "z"], rows)
