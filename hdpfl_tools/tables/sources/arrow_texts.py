"""Columns of Arrow as texts, each value in one spelling.

A column of an import is of bytes, since a check of UTF-8 would raise on a single cell. No cell
makes this code raise, and none changes the text of another one.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hdpfl_flower.data.columns import BLANK_BYTES, MAX_RECORD, Texts

_WHOLE = 2.0**53
"""Bound below which a float64 holds every whole number."""
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds texts or bytes."""
    return any(check(kind) for check in _TEXTS)


def as_bytes(column: Any, decimal: str = ".") -> Any:
    """Return an Arrow array as large_binary, nulls kept.

    Args:
        column: n values. A NaN is null; a text above ``MAX_RECORD`` bytes becomes null.
        decimal: the mark before the fraction of numbers that are of a type of numbers.

    Returns:
        numbers in the shortest decimal spelling that gives the same float64, whole ones without a
        fraction; dates, and timestamps without their time of day (of a zone: in UTC), in ISO 8601;
        booleans as true and false; structures and lists as Python writes them.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_bytes(column.dictionary_decode(), decimal)
    if is_text(kind):
        texts = column.cast(pa.large_binary())
        longest = pc.max(pc.binary_length(texts)).as_py() or 0
        if longest > MAX_RECORD:
            texts = pc.if_else(pc.greater(pc.binary_length(texts), MAX_RECORD), None, texts)
        return texts
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # safe=False: a time of day is cut off; a safe cast would raise on that one cell.
        column = column.cast(pa.date32(), safe=False)
    elif pa.types.is_floating(kind):
        texts = _float_texts(column.cast(pa.float64()) if kind == pa.float16() else column)
        return _with_decimal(texts, decimal)
    elif not (
        pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    ):
        return as_bytes(pa.array(map(_structure_text, column), pa.large_binary()))
    texts = column.cast(pa.large_utf8()).cast(pa.large_binary())
    return _with_decimal(texts, decimal) if pa.types.is_decimal(kind) else texts


def is_rounded(column: Any) -> bool:
    """Return whether floats reach a size at which two whole numbers become one.

    A row without an id makes pandas write a column of integers as one of floats.
    """
    if not pa.types.is_floating(column.type):
        return False
    numbers = np.abs(np.asarray(column.fill_null(0)))
    return bool((numbers >= 2.0 ** (np.finfo(numbers.dtype).nmant + 1)).any())


def _structure_text(cell: Any) -> bytes | None:
    """Return one value as Python writes it; None for one that Python cannot hold."""
    try:
        value = cell.as_py()
        return None if value is None else str(value).encode()
    except Exception:
        return None


def _with_decimal(texts: Any, decimal: str) -> Any:
    if decimal == ".":
        return texts
    written = pc.replace_substring(texts.cast(pa.large_utf8()), ".", decimal, max_replacements=1)
    return written.cast(pa.large_binary())


def _float_texts(column: Any) -> Any:
    """Return the texts of floats; null for NaN."""
    column = pc.if_else(pc.is_nan(column), None, column)
    texts = column.cast(pa.large_utf8())
    numbers = np.asarray(column.cast(pa.float64()).fill_null(np.nan))
    is_whole = (np.floor(numbers) == numbers) & (np.abs(numbers) < _WHOLE)
    if is_whole.any():
        whole = pa.array(np.where(is_whole, numbers, 0).astype(np.int64)).cast(pa.large_utf8())
        texts = pc.if_else(pc.and_(pa.array(is_whole), column.is_valid()), whole, texts)
    return texts.cast(pa.large_binary())


def texts_in(columns: Sequence[Any]) -> Texts:
    """Return arrays of bytes, concatenated, as a column."""
    if not sum(map(len, columns)):
        return Texts((), np.zeros(0, np.int64))
    whole = pa.chunked_array(columns)
    if not pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_encode()
    whole = whole.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0)
    values = tuple(value.strip(BLANK_BYTES) for value in whole.dictionary.to_pylist())
    absent = None
    if whole.indices.null_count:
        absent = np.asarray(whole.indices.is_null(), dtype=bool)
        values = (*values, b"")
    rows = whole.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)
    return Texts(values, rows.astype(np.int64, copy=False), absent)


def as_column(cells: Iterable[object], decimal: str) -> Any:
    """Return Python values as large_binary, each by its own type alone."""
    return pa.array([_text_of(cell, decimal) for cell in cells], pa.large_binary())


def _text_of(cell: object, decimal: str) -> bytes | None:
    """Return one value in the spelling of :func:`as_bytes`; None for none."""
    match cell:
        case None | "":
            return None
        case bool():
            return b"true" if cell else b"false"
        case float():
            if cell != cell:  # a NaN  # noqa: PLR0124
                return None
            whole = cell.is_integer() and abs(cell) < _WHOLE
            return (f"{cell:.0f}" if whole else repr(cell).replace(".", decimal)).encode()
        case datetime.datetime():
            return cell.date().isoformat().encode()
        case bytes():
            text = cell
        case _:
            text = str(cell).encode(errors="surrogatepass")
    return text if len(text) <= MAX_RECORD else None
