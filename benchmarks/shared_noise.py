"""A round of four SuperNodes with shared noise, beside one with each site's own noise.

On one federation runs of both take turns, under the same terms but for ``noise``: one step a round.
A round's seconds lie between two ends of rounds.
"""

from __future__ import annotations

import statistics

from benchmarks.federation import SITES, federation, seconds_of
from benchmarks.timing import show

ROUNDS, TURNS, BAR = 10, 2, 1.2
SAME = {"strategy": "fedavg", "local-epochs": 1, "min-sites": len(SITES)}
TERMS = {"records": {**SAME, "local-steps": 1}, "shared": SAME}


def main() -> None:
    """Print the seconds of a round of both."""
    seconds: dict[str, list[float]] = {noise: [] for noise in TERMS}
    with federation(1) as up:
        for turn in range(TURNS):
            for noise, terms in TERMS.items():
                folder = up.run(f"{noise}-{turn}", rounds=ROUNDS, noise=noise, **terms)
                seconds[noise] += seconds_of(folder)
    median = {noise: statistics.median(values) for noise, values in seconds.items()}
    show(
        f"A round of {len(SITES)} SuperNodes, medians of {len(seconds['shared'])}",
        ["noise", "seconds", "bar"],
        [
            ["records", f"{median['records']:.2f}", ""],
            ["shared", f"{median['shared']:.2f}", ""],
            ["shared / records", f"{median['shared'] / median['records']:.2f}", f"≤ {BAR}"],
        ],
    )
