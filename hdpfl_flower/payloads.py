"""Bytes of sealed float32 vectors, as ``numpy.save`` writes them."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np


def numbers_in(payload_bytes: int) -> int:
    """Return the number of numbers in an update's payload of ``payload_bytes`` bytes.

    >>> numbers_in(len(numpy_header((650,))) + 4 * 650)
    650
    """
    return (payload_bytes - len(numpy_header((1,)))) // 4


@lru_cache(maxsize=256)
def numpy_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of ``numpy.save`` for float32 arrays of ``shape``."""
    stream = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()
