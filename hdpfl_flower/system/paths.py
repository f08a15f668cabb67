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


def cache_dir() -> Path:
    """Return the cache folder, private to its owner."""
    folder = home() / "cache"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
