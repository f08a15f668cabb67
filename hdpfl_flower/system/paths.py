"""Paths (``$HDPFL_HOME``, default ``~/.hdpfl``) and cores of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """Return the absolute path of ``$HDPFL_HOME``, default ``~/.hdpfl``."""
    return Path(os.environ.get("HDPFL_HOME") or "~/.hdpfl").expanduser().absolute()


def runs_dir(configured: str = "") -> Path:
    """Return the absolute run folder: ``configured``, else ``$HDPFL_HOME/runs``."""
    return Path(configured).expanduser().absolute() if configured else home() / "runs"


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
