"""Lock between processes for shared, repeatable work.

One process does the work and the others read its result.

For work that is costly but harmless to do twice: the lock is free as soon as its process is gone,
for any reason, and a process that waits too long, or cannot lock here, goes ahead without it. The
ledger's locks (``ledger/locks.py``) protect a budget, and refuse instead.
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
    """Hold ``path`` exclusively among processes and threads using it here.

    Args:
        path: a separate file, made and removed here; its folder exists.
        seconds: maximum wait for another holder; then the block runs without the lock.
    """
    descriptor = _taken(path, time.monotonic() + seconds)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                # Removed while it is held: a process that has it open then finds that it is gone.
                path.unlink(missing_ok=True)
            os.close(descriptor)


def _taken(path: Path, until: float) -> int | None:
    """Return the descriptor of the locked file; None if it cannot be locked."""
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
    """Return whether ``path`` is still the opened file, not yet removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
