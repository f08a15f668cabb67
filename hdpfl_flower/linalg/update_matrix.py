"""The one copy of a round's updates: in memory, or, where it is large, in a file that is paged.

A file costs no more than its pages that are in use: what the estimators and rules read goes through
the updates block by block, so a round of many large models ends on a small machine too, at the
speed of its disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

log = logging.getLogger("hdpfl.server")

_SHARE = 4
"""A matrix of more than a quarter of the machine's memory lies in a file."""
GIVEN_BACK = 2**20
"""Updates of so many bytes are worth giving their replies' memory back one by one."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory_limit() -> int:
    """Return the bytes that a matrix may take in memory: a quarter of what this process may use.

    That is the machine's memory, or the container's limit where that is less. Rounded down.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        available = min(available, int(_CGROUP.read_text()))
    return available // _SHARE


def give_back_freed_memory() -> None:
    """Return what this process has freed to the system; where the C library cannot, do nothing.

    glibc keeps freed pieces of up to 32 MB in its heap: the replies that have been let go of would
    still take their place beside the matrix.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return found


def update_matrix(
    n: int, d: int, folder: Path | None = None, limit: int | None = None
) -> npt.NDArray[np.float32]:
    """Return room for n updates, float32, shape ``(n, d)``, not initialised.

    In memory it takes pages as it is written to. Beyond ``limit`` it lies in a file without a name,
    which is gone with the array, also after a crash.

    Args:
        n: rows.
        d: parameters.
        folder: where the file lies; None, or no folder yet: the system's for temporary files.
        limit: bytes; None: :func:`memory_limit`.

    Raises:
        OSError: no room for the file.
    """
    size = 4 * n * d
    if size <= (memory_limit() if limit is None else limit):
        return np.empty((n, d), np.float32)
    place = folder if folder is not None and folder.is_dir() else Path(tempfile.gettempdir())
    log.info("%d updates of %d parameters lie in a file of %.1f GB", n, d, size / 1e9)
    with tempfile.TemporaryFile(dir=place) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a SIGBUS
        else:
            file.truncate(size)
        return np.asarray(np.memmap(file, np.float32, "r+", shape=(n, d)))
