"""Lock of a folder between a site's processes; that of a release is in ``site_ledger.py``.

``filelock`` does less: it leaves a file for each release, falls back to a file that outlives a
killed process if the file system has no ``flock``, and cannot lock a folder. It keeps its files
because unlinking a locked one can let two processes in. Here it cannot: a release's lock is taken
inside a transaction of the ledger, and so by one process at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hdpfl_flower.errors import LedgerError


@contextlib.contextmanager
def alone_in(folder: Path, seconds: float) -> Iterator[None]:
    """Hold ``folder`` exclusively among processes that ask here.

    It is free when this process ends.

    Raises:
        LedgerError: another process holds it for ``seconds``, or it cannot be opened.
    """
    with contextlib.ExitStack() as held:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
            held.callback(os.close, descriptor)
            _wait_for(descriptor, time.monotonic() + seconds)
        except OSError as error:
            raise LedgerError(f"ledger: {folder} cannot be locked: {error.strerror}") from None
        yield


def _wait_for(descriptor: int, until: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(0.01)
