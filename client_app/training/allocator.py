"""One setting of the C library's allocator that a training loop needs."""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


@cache
def keep_freed_memory() -> bool:
    """Let the process keep the memory that tensors free, up to 1 GiB; tells whether it took.

    A step makes and frees buffers of megabytes. Giving their pages back to the kernel, only to be
    handed zeroed ones a moment later, costs a tenth of a convolutional step (glibc's default; other
    C libraries are left as they are).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    settings = {_M_MMAP_THRESHOLD: 2**30, _M_TRIM_THRESHOLD: 2**30, _M_TOP_PAD: 2**26}
    return all([mallopt(key, value) == 1 for key, value in settings.items()])
