"""Columns of a Parquet file of any Arrow type; extra ``tables``.

As in :mod:`hdpfl_flower.data.columns`, no cell makes this code raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import MAX_RECORD, PLAIN, Cells, Notation, Texts, row_digest
from hdpfl_flower.errors import DataError
from hdpfl_flower.system.extras import extra


@dataclass(frozen=True, repr=False, eq=False)
class ArrowColumn:
    """A column of a Parquet file.

    Attributes:
        values: an Arrow array, in chunks or whole.
    """

    values: Any

    def cells(self, notation: Notation = PLAIN) -> Cells:
        """Return the cells as numbers and texts.

        Texts, numbers, booleans and dictionaries of them are read; cells of any other type (dates,
        lists, structures) are neither a number nor a text.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        column = _plain(self.values)
        absent = np.asarray(column.is_null(), dtype=bool)
        if _is_text(column.type):
            return replace(_texts(column).cells(notation), absent=absent)
        if pa.types.is_boolean(column.type):
            words = pc.if_else(column, b"true", b"false")
            return Cells(_floats(column), _texts(words), absent)
        if _is_number(column.type):
            numbers = _floats(column)
            # Nulls and NaNs are absent; an infinite number is present but unreadable.
            return Cells(np.where(np.isfinite(numbers), numbers, np.nan), None, np.isnan(numbers))
        return Cells(np.full(len(column), np.nan), None, absent)

    def days(self, formats: Sequence[str], century: int = 0) -> npt.NDArray[np.float64]:
        """Return days since 1970-01-01, shape ``(n,)``; NaN without a date.

        Arrow's own dates and timestamps (of a zone: its date in UTC) need no format.
        """
        import pyarrow as pa

        column = _plain(self.values)
        if _is_text(column.type):
            return _texts(column).days(formats, century)
        if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
            return np.full(len(column), np.nan)
        # safe=False: a time of day is cut off; a safe cast would raise on that one cell.
        days = column.cast(pa.date32(), safe=False).cast(pa.int32())
        return _floats(days)

    def texts(self) -> Texts | None:
        """Return the cells as texts, numbers written out; None without text."""
        import pyarrow as pa

        column = _plain(self.values)
        if _is_number(column.type):
            return _texts(column.cast(pa.large_utf8()))
        return _texts(column) if _is_text(column.type) or pa.types.is_null(column.type) else None

    def take(self, rows: npt.NDArray[np.int64]) -> ArrowColumn:
        """Return the column of these rows alone."""
        return ArrowColumn(self.values.take(rows))


def read_parquet(
    path: Path, choose: Callable[[Sequence[str]], Sequence[str]]
) -> tuple[dict[str, ArrowColumn], int]:
    """Return the chosen columns of a Parquet file and its row count.

    Args:
        path: the file.
        choose: returns the columns to be read, from the names of all of them; raises where these
            are not as they should be.

    Guarantees:
        A list or structure is not decoded, and a text above ``MAX_RECORD`` bytes becomes null;
        Arrow takes four times its size meanwhile, as it has no part of a page.

    Raises:
        InstallationError: pyarrow is not installed.
        DataError: the file is missing, or no readable Parquet file.
    """
    with _opened(path) as file:
        import pyarrow as pa

        schema, rows = file.schema_arrow, file.metadata.num_rows
        wanted = list(dict.fromkeys(choose(schema.names)))
        nested = {name for name in wanted if pa.types.is_nested(schema.field(name).type)}
        columns: dict[str, Any] = {name: [] for name in wanted}
        for batch in file.iter_batches(columns=[name for name in wanted if name not in nested]):
            for name, chunk in zip(batch.schema.names, batch.columns, strict=True):
                columns[name].append(_within_bound(chunk))
    for name in nested:
        columns[name] = [pa.array(np.zeros(rows, dtype="timedelta64[s]"))]
    read: dict[str, ArrowColumn] = {}
    for name, chunks in columns.items():
        kind = chunks[0].type if chunks else schema.field(name).type
        read[name] = ArrowColumn(pa.chunked_array(chunks, kind))
    return read, rows


def row_digests(path: Path) -> npt.NDArray[np.uint64]:
    """Return a digest of every row over all columns, uint64 ``(n,)``.

    A number counts by its value, of any type, since writers turn a whole column of integers
    into floats for one null. Cells of lists and structures do not count, nor times of day.

    Raises:
        DataError: as :func:`read_parquet`.
    """
    import pyarrow as pa

    digests = bytearray()
    with _opened(path) as file:
        fields = [field for field in file.schema_arrow if not pa.types.is_nested(field.type)]
        for batch in file.iter_batches(columns=[field.name for field in fields]):
            words = [word for column in batch.columns for word in _words(ArrowColumn(column))]
            for row in np.stack(words, axis=1):
                digests += row_digest(row.tobytes())
    return np.frombuffer(bytes(digests), dtype=np.uint64)


def _words(column: ArrowColumn) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield a column's parts of the row digests, uint64 ``(n,)`` each."""
    cells = column.cells()
    numbers = cells.numbers if cells.texts is not None else np.fmax(cells.numbers, column.days(()))
    is_number = np.isfinite(numbers)
    yield np.where(is_number, numbers + 0.0, np.nan).view(np.uint64)  # no -0.0, and one NaN
    if cells.texts is not None:
        digests = [row_digest(text) for text in cells.texts.values]
        hashed = np.frombuffer(b"".join(digests), dtype=np.uint64)[cells.texts.rows]
        blank = np.array([not text for text in cells.texts.values], dtype=bool)[cells.texts.rows]
        yield np.where(is_number | blank, np.uint64(0), hashed)
    else:
        yield np.zeros(len(numbers), dtype=np.uint64)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the Parquet file at ``path``; errors as of :func:`read_parquet`."""
    with extra("tables", "a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowException, ValueError):
        raise DataError(
            "the table is not there or is no readable Parquet file; check its path and format"
        ) from None


def _within_bound(column: Any) -> Any:
    """Return ``column`` with nulls for texts above :data:`MAX_RECORD` bytes, and no dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    if not _is_text(column.type) or pa.types.is_fixed_size_binary(column.type):
        return column
    texts = column.cast(pa.large_binary())
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest <= MAX_RECORD:
        return column
    return pc.if_else(pc.greater(pc.binary_length(texts), MAX_RECORD), None, texts).cast(
        column.type
    )


def _plain(column: Any) -> Any:
    """Return ``column`` decoded from a dictionary."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: Any) -> bool:
    """Return whether an Arrow type holds texts or bytes."""
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


def _is_number(kind: Any) -> bool:
    """Return whether an Arrow type holds integers, floats or decimals."""
    from pyarrow import types

    return any(check(kind) for check in (types.is_integer, types.is_floating, types.is_decimal))


def _texts(column: Any) -> Texts:
    """Return a text column; nulls become empty texts."""
    import pyarrow as pa

    # As bytes: a check of its UTF-8 would raise on a single cell.
    cells = column.cast(pa.large_binary()).fill_null(b"")
    return Texts.of(cells.to_pylist())


def _floats(column: Any) -> npt.NDArray[np.float64]:
    """Return ``column`` as float64, shape ``(n,)``; nulls become NaN."""
    import pyarrow as pa

    # safe=False: an integer above 2**53 is rounded; a safe cast would raise on that one cell.
    values = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    return np.asarray(values, dtype=np.float64)
