"""Stochastic rounding of vectors to a coarse public grid, and reading.

It saves bytes on the network.

A site rounds its noisy update, never a vector before the noise: a function of a noisy update, and
of independent random bits, costs no ε. Rounding is stochastic: a number between
two neighbours of the grid becomes the upper one with the probability of its place between them, so
that its expectation is the number itself (Alistarh et al., QSGD, NeurIPS 2017).

    bfloat16   2 bytes a number: the upper half of float32; steps of 2⁻⁷ of the number at most
    int8       1 byte a number and 2 a block of 64: whole multiples, from −127 to 127, of the
               block's scale s, the least bfloat16 with 127·s ≥ max |u| of the block

The error of a number is below one step and its variance at most step²/4. Zeros stay zeros. The
value read is the same on every machine: q·s has 15 bits, and float32 holds 24.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.terms import FLOAT32 as FLOAT32  # noqa: PLC0414 - exported
from hdpfl_flower.config.terms import Form as Form  # noqa: PLC0414 - exported
from hdpfl_flower.errors import WireError

BFLOAT16: Final = "bfloat16"
INT8: Final = "int8"

BLOCK = 64
"""Numbers that share a scale."""
LARGEST = 127
"""Largest whole multiple, in magnitude; −128 is not used."""
LEAST_KNOWN_APART = 36
"""Length from which independently noised, rounded vectors are not equal by chance.

Shorter ones may be equal: if the noise is one step or more, they are equal in a
number with probability .282 (1/(2√π)) at most, and .282³⁶ < 2e-20.
"""
LARGEST_ERROR: Mapping[str, float] = MappingProxyType(
    {FLOAT32: 0.0, BFLOAT16: 2.0**-8, INT8: math.sqrt(BLOCK) / 2 * (1 + 2.0**-7) / LARGEST}
)
"""Bound on rounding's root mean square l2 error over the vector's norm, rounded up.

It is half a step per number. For int8 it is .0318, for a block with one number that is not nearly
0; for normal numbers the share is .008.
"""

_CHUNK = 1024 * BLOCK
"""Numbers rounded at a time."""
_WORDS = 2.0**-16
_NOT_A_NUMBER = 0x7FC0

Vector = npt.NDArray[np.float32]
Draw = Callable[[int], bytes]
"""Source of random bytes, each returned only once."""


def round_vector(values: Vector, form: Form, draw: Draw) -> bytes:
    """Return the numbers rounded to ``form``'s grid, in sent form.

    Args:
        values: float32, shape ``(d,)``; for a site's update after its noise.
        form: ``bfloat16`` or ``int8``.
        draw: the random bytes for rounding, two per number.

    Guarantees:
        The numbers read are in expectation ``values``, up to 2⁻¹⁷ of a step. A non-finite number is
        sent in a form that :func:`read_rounded` refuses.
    """
    parts = [
        (_to_bfloat16 if form == BFLOAT16 else _to_int8)(values[start : start + _CHUNK], draw)
        for start in range(0, len(values), _CHUNK)
    ]
    # All scales first, then all numbers.
    return b"".join(scales for scales, _ in parts) + b"".join(numbers for _, numbers in parts)


def read_rounded(data: bytes, size: int, form: Form) -> Vector:
    """Return the numbers written by :func:`round_vector`, shape ``(size,)``.

    Raises:
        WireError: another length, a scale that is negative or not finite, a multiple out of range
            or of a scale of zero, or a number that is not finite.
    """
    # Exact, and first: no read goes beyond the bytes, and none of them is left over.
    if len(data) != rounded_bytes(size, form):
        raise WireError("array: unexpected length")
    if form == BFLOAT16:
        values = _from_halves(np.frombuffer(data, "<u2"))
    else:
        values = _from_int8(data, size)
    if not np.isfinite(values).all():
        raise WireError("array: not finite")
    return values


def rounded_bytes(size: int, form: Form) -> int:
    """Return the bytes of ``size`` numbers.

    >>> rounded_bytes(650, "bfloat16"), rounded_bytes(650, "int8")
    (1300, 672)
    """
    return 2 * size if form == BFLOAT16 else size + 2 * _blocks(size)


def rounded_numbers(length: int, form: Form) -> int:
    """Return the number of numbers in ``length`` bytes.

    >>> [rounded_numbers(rounded_bytes(size, "int8"), "int8") for size in (1, 64, 65, 650)]
    [1, 64, 65, 650]
    """
    return length // 2 if form == BFLOAT16 else length - 2 * math.ceil(length / (BLOCK + 2))


def numbers_in(payload_bytes: int, form: Form = FLOAT32) -> int:
    """Return the number of numbers in an update's payload.

    The payload has ``payload_bytes`` bytes, sealed in ``form``.

    >>> numbers_in(len(numpy_header((650,))) + 4 * 650)
    650
    """
    if form != FLOAT32:
        return rounded_numbers(payload_bytes, form)
    return (payload_bytes - len(numpy_header((1,)))) // 4


@lru_cache(maxsize=256)
def numpy_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of ``numpy.save`` for float32 arrays of ``shape``."""
    stream = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def _blocks(size: int) -> int:
    return math.ceil(size / BLOCK)


def _uniform(draw: Draw, count: int) -> npt.NDArray[np.uint16]:
    return np.frombuffer(draw(2 * count), "<u2")


def _to_bfloat16(values: Vector, draw: Draw) -> tuple[bytes, bytes]:
    """Return no scales, and upper halves after adding 16 random bits each."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # Sign and magnitude: the carry moves the magnitude up, over a power of two as well.
    halves = ((bits + _uniform(draw, len(bits))) >> np.uint32(16)).astype("<u2")
    # Not NaN + bits, whose carry could reach the sign and become a number.
    halves[~np.isfinite(values)] = _NOT_A_NUMBER
    return b"", halves.tobytes()


def _to_int8(values: Vector, draw: Draw) -> tuple[bytes, bytes]:
    count = _blocks(len(values))
    rows = np.zeros((count, BLOCK), np.float64)
    rows.reshape(-1)[: len(values)] = values
    finite = np.isfinite(rows).all(axis=1)
    rows[~finite] = 0
    halves = _least_bfloat16(np.abs(rows).max(axis=1) / LARGEST)
    scales = _from_halves(halves).astype(np.float64)
    halves[~finite] = _NOT_A_NUMBER
    # A block of zeros has the scale 0, and its numbers are 0/1.
    rows /= np.where(scales > 0, scales, 1)[:, None]
    whole = rows.reshape(-1)[: len(values)]
    # floor(x + U) for U uniform in (0, 1), never 0 or 1: a whole x is unchanged.
    whole = np.floor(whole + (_uniform(draw, len(values)) + 0.5) * _WORDS)
    return halves.tobytes(), whole.astype(np.int8).tobytes()


def _from_int8(data: bytes, size: int) -> Vector:
    count = _blocks(size)
    scales = _from_halves(np.frombuffer(data, "<u2", count))
    whole = np.frombuffer(data, np.int8, offset=2 * count)
    # The sign bit too: −0 is not a scale.
    if np.signbit(scales).any() or not np.isfinite(scales).all():
        raise WireError("array: a scale is negative or not finite")
    each = np.repeat(scales, BLOCK)[:size]
    if (whole < -LARGEST).any() or whole[each == 0].any():
        raise WireError("array: a number is not on the grid")
    with np.errstate(over="ignore"):
        return whole.astype(np.float32) * each


def _least_bfloat16(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Return the least bfloat16 numbers ≥ these and ≥ 0, as 16 bits."""
    single = numbers.astype(np.float32)
    single = np.where(single < numbers, np.nextafter(single, np.float32(np.inf)), single)
    bits = single.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) >> np.uint32(16)).astype("<u2")


def _from_halves(halves: npt.NDArray[np.uint16]) -> Vector:
    """Return bfloat16 numbers as float32."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
