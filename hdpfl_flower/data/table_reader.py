"""A CSV or Parquet file becomes columns of cells, whatever is in the cells.

A CSV record is one line. A line break inside quotes is not supported on purpose: there one unclosed
quote would swallow the records after it, so that one record could change others.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import BLANK, Column, GatheredTexts, TextColumn
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
        columns: by name, one length n: of the rows that could be cut into cells.
        positions: int64 ``(n,)``; the row of the file, from 0, of each; blank lines do not count.
        rows: rows in the file.
    """

    columns: Mapping[str, Column]
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
    try:
        data = path.read_bytes()
    except OSError:
        raise DataError(
            "the table is not there or cannot be read; check its path and its permissions"
        ) from None
    text = data.removeprefix(_BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = [line for line in text.split(b"\n") if line.strip()]
    header, delimiter = _header(lines[0] if lines else b"", wanted)
    columns = [(header.index(name.encode()), GatheredTexts()) for name in wanted]
    positions = []
    for row, line in enumerate(lines[1:]):
        cells = _cut(line, delimiter)
        # Left out alone: cells cannot be assigned to columns, and an error would disclose the
        # record.
        if len(cells) != len(header):
            continue
        positions.append(row)
        for at, column in columns:
            column.add(cells[at])
    content = [TextColumn(column.texts()) for _, column in columns]
    return RawTable(
        dict(zip(wanted, content, strict=True)),
        np.array(positions, dtype=np.int64),
        max(len(lines) - 1, 0),
    )


def _header(line: bytes, wanted: Sequence[str]) -> tuple[list[bytes], bytes]:
    """Return the names in the header ``line``, and the delimiter that parts them.

    Raises:
        DataError: with no delimiter the header has every column of the schema.
    """
    blank = BLANK.encode()
    cuts = [[name.strip(blank) for name in _cut(line, mark)] for mark in _DELIMITERS]
    # The delimiter with which the header has most columns of the schema.
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
    from hdpfl_flower.data.arrow_columns import read_parquet

    columns, rows = read_parquet(path, wanted, lambda names: _check_header(names, wanted))
    return RawTable(columns, np.arange(rows), rows)
