"""Setting of glibc's allocator: it keeps freed tensor buffers; 10 % of a convolutional step."""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


@cache
def keep_freed_memory() -> bool:
    """Let the process keep the memory that tensors free, up to 1 GiB.

    A step allocates and frees buffers of megabytes. By default glibc returns their pages to the
    kernel and receives zeroed pages a moment later, which takes a tenth of a convolutional step.

    Returns:
        False where the C library lacks the setting; it is left as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    settings = {_M_MMAP_THRESHOLD: 2**30, _M_TRIM_THRESHOLD: 2**30, _M_TOP_PAD: 2**26}
    # A list, not a generator: every setting is made, also after one that the library refuses.
    return all([mallopt(key, value) == 1 for key, value in settings.items()])
