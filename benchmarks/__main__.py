"""Run benchmarks: ``python -m benchmarks [NAME …]``; all without a name."""

from __future__ import annotations

import importlib
import os
import platform
import sys

import torch

from benchmarks.timing import console

NAMES = (
    "dpsgd",
    "federation",
    "shared_noise",
    "scale",
    "records",
    "gpu",
)

chosen = sys.argv[1:] or NAMES[:-1]  # the last needs a GPU
unknown = sorted(set(chosen) - set(NAMES))
if unknown:
    sys.exit(f"error: no benchmark '{unknown[0]}'; choose of {', '.join(NAMES)}")
console.print(
    f"{platform.machine()}, {os.cpu_count()} cores, "
    f"Python {platform.python_version()}, torch {torch.__version__}"
)
for name in chosen:
    importlib.import_module(f"benchmarks.{name}").main()
