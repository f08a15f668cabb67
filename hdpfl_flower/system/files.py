"""One way to write a file: all of it or nothing, and no reader ever sees a part."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Write ``content`` to ``path``; an interruption leaves what was there before.

    Args:
        path: the file; its folder exists.
        content: all of it.
        mode: permissions of the new file.
        durable: wait until the disk has it.

    Raises:
        OSError: the disk refuses; nothing is left behind.
    """
    # In the same folder, for a rename is atomic only within a file system; with the process id, so
    # that two processes never share it.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                # Before the rename: else a crash could leave the new name with nothing in it.
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder; raises ``OSError``."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
