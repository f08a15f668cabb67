"""What estimating the noise of 20 clients × 1,000,000 parameters costs, in read passes and memory.

A read pass is the time of summing the float32 matrix once.
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from benchmarks.timing import interleaved, show
from hdpfl_flower.noise_level import estimate_noise_levels

CLIENTS, PARAMETERS = 20, 1_000_000


def main() -> None:
    """Print passes, memory and the excess q of the weights."""
    generator = np.random.default_rng(0)
    variances = 10 ** generator.uniform(-3, 0, CLIENTS)
    updates = generator.standard_normal((CLIENTS, PARAMETERS), dtype=np.float32)
    updates *= np.sqrt(variances).astype(np.float32)[:, None]
    updates += 0.3 * generator.standard_normal(PARAMETERS, dtype=np.float32)
    rows = []
    for method in ("factor-analysis", "column-norm"):
        times = interleaved(
            {
                "read pass": lambda: float(updates.sum()),
                "estimate": lambda m=method: estimate_noise_levels(updates, m),  # type: ignore[misc]
            },
            clock=time.perf_counter,
        )
        tracemalloc.start()
        levels = estimate_noise_levels(updates, method)
        memory = tracemalloc.get_traced_memory()[1] / updates.nbytes
        tracemalloc.stop()
        weights = (1 / levels) / (1 / levels).sum()
        excess = (weights**2 * variances).sum() * (1 / variances).sum()
        passes = times["estimate"] / times["read pass"]
        bar = "≤ 12, ≤ 0.1" if method == "factor-analysis" else ""
        rows.append([method, f"{passes:.1f}", f"{memory:.3f}", f"{excess:.4f}", bar])
    title = f"Noise levels of {CLIENTS} clients × {PARAMETERS:,} parameters"
    show(title, ["method", "read passes", "extra memory / matrix", "q (oracle = 1)", "bar"], rows)
