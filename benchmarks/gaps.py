"""Noise from uploads that are rounds apart: q of ``temporal`` where few sites take part in a round.

MNIST, 20 sites of at most 2 labels each, 50 rounds; q is the aggregate's noise over the least there
is, 1 being as good as told. Of the rounds after the tenth, and of those among them in which no site
sends its first upload, which nothing can be compared with.
"""

from __future__ import annotations

import os

import numpy as np

from benchmarks.noise_level import LABELS, MNIST
from benchmarks.recorded import excess, record
from benchmarks.timing import console, show
from hdpfl_flower.estimators.temporal import NoiseMemory, TrackOptions, track

RUNS = ((0.15, 11), (0.3, 11), (0.3, 12), (0.3, 13), (0.5, 11), (1.0, 11))
"""Share of the sites asked each round, and the seed. Seeds 1 and 2 were looked at before."""
SITES, ROUNDS, EARLY = 20, 50, 10


def main() -> None:
    """Print q after the tenth round."""
    folder, rows = os.environ.get("HDPFL_TEST_DATA", ""), []
    if not folder:
        console.print("gaps: set HDPFL_TEST_DATA to the folder of MNIST's files")
        return
    for fraction, seed in RUNS:
        terms = {**MNIST, **LABELS, "data-dir": folder, "fraction": fraction, "seed": seed}
        memory = NoiseMemory()
        found, known, seen = [], [], set[str]()
        for updates in record({**terms, "rounds": ROUNDS}, SITES):
            memory, tracked = track(
                memory,
                updates.server_round,
                updates.sites,
                updates.updates,
                TrackOptions("temporal"),
            )
            q = excess(tracked.variances, updates.disclosed["noise-std"] ** 2)
            if updates.server_round > EARLY:
                found.append(q)
                known.append(seen.issuperset(updates.sites))
            seen.update(updates.sites)
        later = np.array(found)[known]
        rows.append([f"{fraction:.0%}", str(seed), f"{max(found):.4f}", f"{later.max():.4f}",
                     f"{later.mean():.4f}", "≤ 1.05"])  # fmt: skip
    show(
        "q of `temporal`, MNIST ≤ 2 labels, rounds 11 to 50",
        ["taking part", "seed", "worst", "worst without first uploads", "their mean", "bar"],
        rows,
    )
