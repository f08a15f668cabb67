"""Atomic file writes: readers never see a partial file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Write ``content`` to ``path`` atomically; an interruption leaves the old content.

    Args:
        path: the file; its folder exists.
        content: all of it.
        mode: permissions of the new file.
        durable: wait until it is on disk.

    Raises:
        OSError: the disk refuses; no part is left behind.
    """
    # In the same folder, since a rename is atomic only within a file system; with the process id,
    # so that two processes never share it.
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # A new file: an existing one, or a link, may be another user's.
        unfinished.unlink(missing_ok=True)
        descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                # Before the rename: otherwise a crash could leave the new name on an empty file.
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Flush a file, or a folder's names, to disk; raises ``OSError``."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
