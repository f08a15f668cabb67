"""Locks between a site's processes: of a release and of a folder.

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


class ReleaseLock:
    """OS lock on a small file, freed whenever its process ends."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            BlockingIOError: it is held.
            LedgerError: the file cannot be made.
        """
        self._path = path
        try:
            self._fd = self._open()
        except OSError as error:
            raise LedgerError(f"ledger: {path} cannot be made: {error.strerror}") from None
        try:
            # Without waiting: a held lock means that the release is being worked on.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def free(self) -> None:
        """Release the lock and remove its file."""
        with contextlib.suppress(OSError):
            # Unlinked while still held: later another process may own the name.
            self._path.unlink(missing_ok=True)
        os.close(self._fd)

    def _open(self) -> int:
        flags = os.O_CREAT | os.O_RDWR
        try:
            return os.open(self._path, flags, 0o600)
        except FileNotFoundError:  # the first lock of this ledger
            self._path.parent.mkdir(exist_ok=True, mode=0o700)
            return os.open(self._path, flags, 0o600)


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
