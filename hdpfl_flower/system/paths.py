"""Paths (``$HDPFL_HOME``, default ``~/.hdpfl``) of this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def home() -> Path:
    """Return the absolute path of ``$HDPFL_HOME``, default ``~/.hdpfl``."""
    return expanded(os.environ.get("HDPFL_HOME") or "~/.hdpfl").absolute()


def runs_dir(configured: str = "") -> Path:
    """Return the absolute run folder: ``configured``, else ``$HDPFL_HOME/runs``."""
    return expanded(configured).absolute() if configured else home() / "runs"


def expanded(path: str | Path) -> Path:
    """Return a path with its ``~`` replaced; that of an unknown user stays as it is."""
    with suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)
