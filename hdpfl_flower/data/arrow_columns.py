"""The columns of a Parquet file, of any Arrow type and any content; the extra ``tables``.

As in :mod:`hdpfl_flower.data.columns`, nothing here raises because of a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import PLAIN, Cells, Notation, Texts
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
        """Return what the cells hold.

        Texts, numbers, booleans and dictionaries of them are read; cells of any other type (dates,
        lists, structures) are neither a number nor a text.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        column = _plain(self.values)
        absent = np.asarray(column.is_null(), dtype=bool)
        if _is_text(column.type):
            return replace(Cells.of_texts(_texts(column), notation), absent=absent)
        if pa.types.is_boolean(column.type):
            words = pc.if_else(column, b"true", b"false")
            return Cells(_floats(column), _texts(words), absent)
        if _is_number(column.type):
            numbers = _floats(column)
            # Nulls and NaNs are absent; an infinite number is there, and unreadable.
            return Cells(np.where(np.isfinite(numbers), numbers, np.nan), None, np.isnan(numbers))
        return Cells(np.full(len(column), np.nan), None, absent)

    def days(self, formats: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return, shape ``(n,)``, the days since 1970-01-01 of each date, NaN for none.

        Arrow's own dates and timestamps (of a zone: its date in UTC) need no format.
        """
        import pyarrow as pa

        column = _plain(self.values)
        if _is_text(column.type):
            return _texts(column).days(formats)
        if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
            return np.full(len(column), np.nan)
        # safe=False: a time of day is cut off; a safe cast would raise on that one cell.
        days = column.cast(pa.date32(), safe=False).cast(pa.int32())
        return _floats(days)

    def texts(self) -> Texts | None:
        """Return the cells as texts, numbers written out; None for a type that has no text."""
        import pyarrow as pa

        column = _plain(self.values)
        if _is_number(column.type):
            return _texts(column.cast(pa.large_utf8()))
        return _texts(column) if _is_text(column.type) or pa.types.is_null(column.type) else None


def read_parquet(
    path: Path, choose: Callable[[Sequence[str]], Sequence[str]]
) -> tuple[dict[str, ArrowColumn], int]:
    """Return some columns of a Parquet file, and the number of its rows.

    Args:
        path: the file.
        choose: returns the columns to be read, from the names of all of them; raises where these
            are not as they should be.

    Raises:
        InstallationError: pyarrow is not installed.
        DataError: the file is missing, or no readable Parquet file.
    """
    with extra("tables", "a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            wanted = choose(file.schema_arrow.names)
            table = file.read(columns=list(wanted))
    except (OSError, pa.ArrowException, ValueError):
        raise DataError(
            "the table is not there or is no readable Parquet file; check its path and format"
        ) from None
    at = table.column_names.index
    return {name: ArrowColumn(table.column(at(name))) for name in wanted}, table.num_rows


def _plain(column: Any) -> Any:
    """Return ``column`` without a dictionary."""
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
    """Return a column of texts, nulls as empty ones."""
    import pyarrow as pa

    # As bytes: a check of its UTF-8 would raise on a single cell.
    cells = column.cast(pa.large_binary()).fill_null(b"")
    return Texts.of(cells.to_pylist())


def _floats(column: Any) -> npt.NDArray[np.float64]:
    """Return ``column`` as float64, shape ``(n,)``, nulls as NaN."""
    import pyarrow as pa

    # safe=False: an integer above 2**53 is rounded; a safe cast would raise on that one cell.
    values = column.cast(pa.float64(), safe=False).fill_null(np.nan)
    return np.asarray(values, dtype=np.float64)
