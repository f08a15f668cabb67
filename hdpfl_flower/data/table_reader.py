"""A CSV or Parquet file becomes columns of cells, whatever is in the cells.

A CSV record is one line. A line break inside quotes is not supported on purpose: there one unclosed
quote would swallow the records after it, so that one record could change others.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import BLANK
from hdpfl_flower.errors import DataError

_DELIMITERS = (b",", b";", b"\t")
_BOM = b"\xef\xbb\xbf"


class Redacted:
    """Holds private counts or records; its text shows none."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"


@dataclass(frozen=True, repr=False, eq=False)
class RawTable(Redacted):
    """Columns as they lie in a file.

    Attributes:
        columns: Arrow arrays by name, one length n, of the rows that could be cut into cells.
        positions: int64 ``(n,)``; the row of the file, from 0, of each; blank lines do not count.
        rows: rows in the file.
    """

    columns: dict[str, Any]
    positions: npt.NDArray[np.int64]
    rows: int


def load_table(path: Path, file_format: str, wanted: Sequence[str]) -> RawTable:
    """Return the columns ``wanted`` of the file at ``path``, ``csv`` or ``parquet``.

    Raises:
        DataError: the file is missing, is no such file, or lacks one of the columns.
    """
    readers: dict[str, Callable[[Path, Sequence[str]], RawTable]] = {
        "csv": _load_csv,
        "parquet": _load_parquet,
    }
    if file_format not in readers:
        raise DataError("a table is 'csv' or 'parquet'; name one of them as its format")
    return readers[file_format](path, wanted)


def _check_header(names: Sequence[str | bytes], wanted: Sequence[str]) -> None:
    """Refuse a header that lacks a column of the schema, or has it twice; it names no other."""
    header = [name if isinstance(name, bytes) else name.encode() for name in names]
    absent = [name for name in wanted if name.encode() not in header]
    if absent:
        listed = ", ".join(f"'{name}'" for name in absent[:5]) + (", …" if len(absent) > 5 else "")
        raise DataError(
            f"the table has no column {listed} of the schema; "
            "name it in the header (the first line of a UTF-8 text)"
        )
    for name in wanted:
        if header.count(name.encode()) > 1:
            raise DataError(f"the table has column '{name}' twice; remove or rename one")


def _load_csv(path: Path, wanted: Sequence[str]) -> RawTable:
    """Cut the lines of a CSV file; those with a wrong number of cells are counted only."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        data = path.read_bytes()
    except OSError:
        raise DataError(
            "the table is not there or cannot be read; check its path and its permissions"
        ) from None
    text = data.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = [line for line in text.split(b"\n") if line.strip()]
    header, delimiter = _header(lines[0] if lines else b"", wanted)
    plain: list[tuple[int, bytes]] = []
    quoted: list[tuple[int, list[bytes]]] = []
    for row, line in enumerate(lines[1:]):
        if b'"' not in line:
            if line.count(delimiter) == len(header) - 1:
                plain.append((row, line))
        elif len(cells := _cut(line, delimiter)) == len(header):
            quoted.append((row, cells))
    whole = pc.split_pattern(pa.array([line for _, line in plain], pa.large_binary()), delimiter)
    flat, first = whole.flatten(), np.arange(len(plain)) * len(header)
    positions = np.array([row for row, _ in (*plain, *quoted)], dtype=np.int64)
    order = pa.array(np.argsort(positions))
    columns = {}
    for name in wanted:
        at = header.index(name.encode())
        rest = pa.array([cells[at] for _, cells in quoted], pa.large_binary())
        columns[name] = pa.concat_arrays([flat.take(pa.array(first + at)), rest]).take(order)
    return RawTable(columns, np.sort(positions), max(len(lines) - 1, 0))


def _header(line: bytes, wanted: Sequence[str]) -> tuple[list[bytes], bytes]:
    """Return the names in the header ``line``, and the delimiter that parts them.

    Raises:
        DataError: no delimiter gives every column of the schema.
    """
    blank = BLANK.encode()
    cuts = [[name.strip(blank) for name in _cut(line, mark)] for mark in _DELIMITERS]
    best = max(range(len(cuts)), key=lambda i: len({name.encode() for name in wanted} & {*cuts[i]}))
    _check_header(cuts[best], wanted)
    return cuts[best], _DELIMITERS[best]


def _cut(line: bytes, delimiter: bytes) -> list[bytes]:
    """Return the cells of one line, without their quotes; none if its quotes do not close."""
    if b'"' not in line:
        return line.split(delimiter)
    try:
        # Latin-1 keeps every byte as it is, whatever the encoding.
        reader = csv.reader(
            [line.decode("latin-1")],
            delimiter=delimiter.decode(),
            strict=True,
            skipinitialspace=True,
        )
        return [cell.encode("latin-1") for cell in next(reader)]
    except csv.Error:
        return []


def _load_parquet(path: Path, wanted: Sequence[str]) -> RawTable:
    """Read the columns of a Parquet file that the schema names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_header(file.schema_arrow.names, wanted)
            table = file.read(columns=list(wanted))
    except (OSError, pa.ArrowException, ValueError):
        raise DataError(
            "the table is not there or is no readable Parquet file; check its path and format"
        ) from None
    columns = {name: table.column(table.column_names.index(name)) for name in wanted}
    return RawTable(columns, np.arange(table.num_rows), table.num_rows)
