"""This machine: where things lie (``$HDPFL_HOME``, default ``~/.hdpfl``), and its cores."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return the absolute path of ``$HDPFL_HOME``, or of ``~/.hdpfl``."""
    return Path(os.environ.get("HDPFL_HOME") or "~/.hdpfl").expanduser().absolute()


def runs_dir(configured: str = "") -> Path:
    """Return the absolute folder of the runs: ``configured``, else ``$HDPFL_HOME/runs``."""
    return Path(configured).expanduser().absolute() if configured else home() / "runs"


def cache_dir() -> Path:
    """Return the folder of things that can be computed again; private to its owner."""
    folder = home() / "cache"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
