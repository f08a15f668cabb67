"""Throughput of the cryptographic noise source against generators that are none."""

from __future__ import annotations

import os

import numpy as np
import torch

from benchmarks.timing import interleaved, show
from hdpfl_flower.privacy.noise import RandomStream


def main() -> None:
    """Print millions of normals a second, one thread."""
    torch.set_num_threads(1)
    stream, numpy_generator = RandomStream(os.urandom(32)), np.random.default_rng(0)
    rows = []
    for count in (650, 7_850, 28_938, 1_000_000):
        loops = max(1, 400_000 // count)
        variants = {
            "ours (AES-CTR, float64)": lambda c=count, k=loops: [
                stream.normal(c) for _ in range(k)
            ],
            "NumPy (PCG64, float64)": lambda c=count, k=loops: [
                numpy_generator.standard_normal(c) for _ in range(k)
            ],
            "torch (Mersenne Twister, float32)": lambda c=count, k=loops: [
                torch.randn(c) for _ in range(k)
            ],
        }  # type: ignore[misc]
        times = interleaved(variants)
        rates = [f"{count * loops / seconds / 1e6:.0f}" for seconds in times.values()]
        rows.append([f"{count:,} at a time", *rates])
    show("Normals, millions a second, one thread", ["", *variants], rows)
