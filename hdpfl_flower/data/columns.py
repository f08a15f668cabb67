"""The cells of one column of a table: numbers where they hold one, texts where there is text.

Nothing here raises because of a cell: an exception that a record can cause would tell of that
record without noise (PRIVACY.md §4). What cannot be read is NaN and matches no value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

NUMBER = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
"""What counts as a number in a cell: ASCII decimal notation; no nan, inf, hex or separators."""

BLANK = " \t\n\r\f\v"
"""Trimmed from both ends of a cell and of a value of the schema (ASCII only)."""


def value_key(value: str) -> float | bytes:
    """Return what a value is compared by: its number if it is a finite one, else its UTF-8 bytes.

    >>> value_key(" 1") == value_key("1.0"), value_key("1_0")
    (True, b'1_0')
    """
    text = value.strip(BLANK)
    if re.fullmatch(NUMBER, text) and np.isfinite(number := float(text)):
        return number
    return text.encode(errors="surrogatepass")


@dataclass(frozen=True, repr=False, eq=False)
class Cells:
    """One column, a cell a row.

    Attributes:
        numbers: float64, shape ``(n,)``; NaN where a cell holds no finite number.
        texts: Arrow ``large_binary`` of length n, trimmed, empty where absent; None for a column
            of numbers.
        absent: bool, shape ``(n,)``; there is nothing in the cell (a null, or a NaN).
    """

    numbers: npt.NDArray[np.float64]
    texts: Any
    absent: Mask

    def lookup(self, values: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return, shape ``(n,)``, the index of the value that each cell holds, -1 for none.

        Values that are numbers match every spelling of that number (``1``, ``1.0``, ``+1e0``);
        others match byte for byte.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        found = np.full(len(self.numbers), -1, dtype=np.int64)
        keys = [value_key(value) for value in values]
        order = [i for i, key in enumerate(keys) if isinstance(key, float)]
        if order:
            order.sort(key=keys.__getitem__)
            numbers = np.array([keys[i] for i in order])
            at = np.searchsorted(numbers, self.numbers).clip(max=len(numbers) - 1)
            found = np.where(numbers[at] == self.numbers, np.array(order)[at], found)
        order = [i for i, key in enumerate(keys) if isinstance(key, bytes)]
        if order and self.texts is not None:
            known = pa.array([keys[i] for i in order], pa.large_binary())
            at = np.asarray(pc.index_in(self.texts, value_set=known).fill_null(-1))
            found = np.where(at >= 0, np.array(order)[at], found)
        return found

    def missing(self, marks: Sequence[str]) -> Mask:
        """Return, shape ``(n,)``, whether a cell is absent or holds one of ``marks``."""
        return self.absent | (self.lookup(marks) >= 0)


def decode(column: Any) -> Cells:
    """Return the cells of an Arrow ``column`` of any type and any content.

    Texts, numbers, booleans and dictionaries of them are read; cells of any other type (dates,
    lists, structures) can be read neither as a number nor as a text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    absent = np.asarray(column.is_null(), dtype=bool)
    if is_text(kind):
        texts = trimmed(column)
        return Cells(_parsed(texts), texts, absent)
    if pa.types.is_boolean(kind):
        words = pc.if_else(column, b"true", b"false").cast(pa.large_binary())
        return Cells(_floats(column), _whole(words.fill_null(b"")), absent)
    if is_number(kind):
        numbers = _floats(column)
        return Cells(np.where(np.isfinite(numbers), numbers, np.nan), None, np.isnan(numbers))
    return Cells(np.full(len(column), np.nan), None, absent)


def is_text(kind: Any) -> bool:
    """Tell whether an Arrow type holds texts or bytes."""
    from pyarrow import types

    return any(
        check(kind)
        for check in (
            types.is_string,
            types.is_large_string,
            types.is_string_view,
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
            types.is_fixed_size_binary,
        )
    )


def is_number(kind: Any) -> bool:
    """Tell whether an Arrow type holds integers, floats or decimals."""
    from pyarrow import types

    return any(check(kind) for check in (types.is_integer, types.is_floating, types.is_decimal))


def trimmed(column: Any) -> Any:
    """Return a column of texts as one ``large_binary`` array, blanks cut off, nulls empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = _whole(column.cast(pa.large_binary()).fill_null(b""))
    # Viewed as text without a check of its UTF-8, which would raise on a single cell; the kernels
    # used on it work on bytes.
    text = pc.ascii_trim(whole.view(pa.large_utf8()), characters=BLANK)
    return text.view(pa.large_binary())


def _whole(column: Any) -> Any:
    """Return a column in one piece."""
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _parsed(texts: Any) -> npt.NDArray[np.float64]:
    """Return the finite numbers written in ``texts``, float64, shape ``(n,)``, NaN elsewhere."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # The pattern admits only what the cast accepts, so that the cast cannot raise.
    written = pc.match_substring_regex(texts, f"^(?:{NUMBER})$")
    numbers = _floats(pc.if_else(written, texts.view(pa.large_utf8()), None))
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _floats(column: Any) -> npt.NDArray[np.float64]:
    """Return ``column`` as float64, shape ``(n,)``, nulls as NaN."""
    import pyarrow as pa

    # safe=False: an integer above 2**53 is rounded; a safe cast would raise on that one cell.
    values = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    return np.asarray(values, dtype=np.float64)
