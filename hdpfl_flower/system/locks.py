"""A lock between processes for work that one of them does and the others read.

For what is costly to do twice and never wrong: it is free as soon as its process is gone, however
that ended, and whoever waits too long, or cannot lock here, goes ahead without it. The ledger's
locks (``ledger/locks.py``) protect a budget, and refuse instead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_PAUSE = 0.005
"""Seconds between two tries."""


@contextlib.contextmanager
def one_at_a_time(path: Path, seconds: float) -> Iterator[None]:
    """Hold ``path`` alone among all processes and threads that ask for it here.

    Args:
        path: a file of its own, made and removed here; its folder exists.
        seconds: to wait at most for another that holds it; then the block runs without the lock.
    """
    descriptor = _taken(path, time.monotonic() + seconds)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                # Removed while it is held: who has opened it already finds that it is gone.
                path.unlink(missing_ok=True)
            os.close(descriptor)


def _taken(path: Path, until: float) -> int | None:
    """Return the descriptor of the locked file; None where it cannot be had."""
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks
            os.close(descriptor)
            return None
        os.close(descriptor)
        if time.monotonic() > until:
            return None
        time.sleep(_PAUSE)


def _is_file(descriptor: int, path: Path) -> bool:
    """Return whether ``path`` is still the opened file: else whoever held it has removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
