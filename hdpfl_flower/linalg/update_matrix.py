"""Single copy of a round's updates, in memory or a paged file.

A file costs only its pages in use: the estimators and strategies read
the updates block by block, so a round of many large models also ends on a small machine, at the
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
"""Fraction of memory (1/4) above which a matrix lies in a file."""
GIVEN_BACK = 2**20
"""Bytes per update above which freed reply memory is given back."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def memory_limit() -> int:
    """Return the memory limit of a matrix in bytes, rounded down.

    It is a quarter of the machine's memory, or of the container's limit if that is less.
    """
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # the file is missing, or says "max"
        available = min(available, int(_CGROUP.read_text()))
    return available // _SHARE


def give_back_freed_memory() -> None:
    """Return freed memory to the system, if the C library can.

    glibc keeps freed pieces of up to 32 MB in its heap: the freed replies would
    still take memory beside the matrix.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return trim


def update_matrix(
    n: int, d: int, folder: Path | None = None, limit: int | None = None
) -> npt.NDArray[np.float32]:
    """Return an uninitialised matrix for n updates, float32, shape ``(n, d)``.

    In memory it takes pages as they are written. Beyond ``limit`` it lies in an unnamed file,
    which disappears with the array, also after a crash.

    Args:
        n: rows.
        d: parameters.
        folder: folder of the file; None, or not existing: the system's for temporary files.
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
