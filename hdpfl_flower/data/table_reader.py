"""A CSV or Parquet file becomes columns of cells, whatever is in the cells.

A CSV record is one line. A line break inside quotes is not supported on purpose: there one unclosed
quote would swallow the records after it, so that one record could change others. For the same
reason every encoding that a profile may name decodes a line alike, whatever the lines before it.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import BLANK, PLAIN, Column, GatheredTexts, Notation, TextColumn
from hdpfl_flower.errors import DataError
from hdpfl_flower.system.lines_read import LINES_AT_A_TIME, on_lines

DELIMITERS = (b",", b";", b"\t", b"|")
"""Tried on a header where the profile names none."""
_BOM = b"\xef\xbb\xbf"
_EXCEL = "an Excel file or an archive, not a CSV; save it as CSV (UTF-8) in Excel"
_OTHERS = {  # .xlsx begins as any zip archive
    b"PK\x03\x04": _EXCEL,
    b"\xd0\xcf\x11\xe0": _EXCEL,
    b"PAR1": "a Parquet file, not a CSV; set 'data.format' to \"parquet\" in the profile",
    b"\x1f\x8b": "a compressed file, not a CSV; unpack it (gunzip)",
}
"""How files of other kinds begin, and what to do with them."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Redacted:
    """Holds private counts or records; its text shows none."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"


@dataclass(frozen=True)
class Form:
    """How the texts of a table are written.

    Attributes:
        encoding: of a CSV, a name of Python's codecs.
        delimiter: between the cells of a CSV; empty: found by the header.
        notation: of numbers.
    """

    encoding: str = "utf-8"
    delimiter: str = ""
    notation: Notation = PLAIN


AS_USUAL = Form()


@dataclass(frozen=True)
class Wanted:
    """A column to be read.

    Attributes:
        names: what it may be called in the header, which must have exactly one of them.
        said: what an error calls it: a name of the public schema, or a key of the profile.
    """

    names: tuple[str, ...]
    said: str


@dataclass(frozen=True, repr=False, eq=False)
class RawTable(Redacted):
    """Columns as they lie in a file.

    Attributes:
        columns: those that were wanted, one length n: of the rows that could be cut into cells.
        positions: int64 ``(n,)``; the row of the file, from 0, of each; blank lines do not count.
        rows: rows in the file.
    """

    columns: Mapping[Wanted, Column]
    positions: npt.NDArray[np.int64]
    rows: int


def load_table(
    path: Path, file_format: str, wanted: Sequence[Wanted], form: Form = AS_USUAL
) -> RawTable:
    """Return the columns ``wanted`` of the file at ``path``, ``csv`` or ``parquet``.

    Raises:
        DataError: the file is missing, is no such file, or lacks one of the columns.
    """
    if file_format == "csv":
        return _load_csv(path, wanted, form)
    if file_format == "parquet":
        return _load_parquet(path, wanted)
    raise DataError("a table is 'csv' or 'parquet'; name one of them as its format")


def lines_of(path: Path, form: Form) -> Iterator[bytes]:
    r"""Yield the lines of a CSV that are not blank, in UTF-8, without their ends (\n, \r\n, \r).

    Guarantees:
        No byte of a line raises: what its encoding has no character for stays as it is in UTF-8,
        and becomes U+FFFD in others.

    Raises:
        DataError: the file is not there, or is an Excel file or in UTF-16 where none is named.
    """
    errors = "surrogateescape" if form.encoding == "utf-8" else "replace"
    try:
        with path.open("rb") as file:
            _refuse_other_kinds(file.read(4), form.encoding)
        with path.open(encoding=form.encoding, errors=errors, newline=None) as texts:
            for number, text in enumerate(texts):
                if number and number % LINES_AT_A_TIME == 0:
                    on_lines.get()(number)
                line = text.removesuffix("\n").encode(errors="surrogateescape")
                line = line if number else line.removeprefix(_BOM)
                if line.strip():
                    yield line
    except OSError:
        raise DataError(
            "the table is not there or cannot be read; check its path and its permissions"
        ) from None
    except UnicodeError:  # of UTF-16 alone, and of the whole file: it has no byte order mark
        raise DataError(
            "the table does not begin as UTF-16 does; name another 'data.encoding'"
        ) from None


def _refuse_other_kinds(first: bytes, encoding: str) -> None:
    """Refuse what is no text in the ``encoding``, by the ``first`` four bytes of the file."""
    for begin, said in _OTHERS.items():
        if first.startswith(begin):
            raise DataError(f"the table is {said}")
    if first[:2] in _UTF_16 and encoding != "utf-16":
        raise DataError(
            "the table is in UTF-16; set 'data.encoding' to \"utf-16\", or save it as UTF-8"
        )
    if b"\0" in first and encoding != "utf-16":
        raise DataError(
            "the table begins with bytes of 0, which no text has: it is no CSV, or UTF-16 without "
            "its mark; save it as CSV (UTF-8)"
        )


def _chosen(names: Sequence[str | bytes], wanted: Sequence[Wanted]) -> list[int]:
    """Return where in the header ``names`` each wanted column is; the errors name no other.

    Raises:
        DataError: the header lacks one of them, or has it twice.
    """
    header = [name if isinstance(name, bytes) else name.encode() for name in names]
    places = [
        [at for at, name in enumerate(header) if name in {each.encode() for each in column.names}]
        for column in wanted
    ]
    absent = [column.said for column, found in zip(wanted, places, strict=True) if not found]
    if absent:
        listed = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
        raise DataError(
            f"the table has no column {listed} of the schema; name it in the header (the first "
            "line, read in 'data.encoding'), or map it in 'data.columns' of the profile"
        )
    for column, found in zip(wanted, places, strict=True):
        if len(found) > 1:
            raise DataError(
                f"the table has column {column.said} twice, or under two of its names; remove or "
                "rename one, or name one in 'data.columns' of the profile"
            )
    return [found[0] for found in places]


def _load_csv(path: Path, wanted: Sequence[Wanted], form: Form) -> RawTable:
    """Cut the lines of a CSV file; those with a wrong number of cells are counted only."""
    lines = lines_of(path, form)
    places, width, delimiter = _header(next(lines, b""), wanted, form.delimiter.encode())
    columns = {at: GatheredTexts() for at in places}
    positions, rows = array("q"), 0
    for row, line in enumerate(lines):
        rows += 1
        cells = cut(line, delimiter)
        # Left out alone: cells cannot be assigned to columns, and an error would disclose the
        # record.
        if len(cells) != width:
            continue
        positions.append(row)
        for at, column in columns.items():
            column.add(cells[at])
    content = {at: TextColumn(column.texts()) for at, column in columns.items()}
    return RawTable(
        {column: content[at] for column, at in zip(wanted, places, strict=True)},
        np.array(positions, dtype=np.int64),
        rows,
    )


def _header(line: bytes, wanted: Sequence[Wanted], given: bytes) -> tuple[list[int], int, bytes]:
    """Return where each column stands in the header ``line``, its cells, and the delimiter.

    Raises:
        DataError: with no delimiter the header has every column of the schema.
    """
    if not line:
        raise DataError("the table is empty; its first line must be a header of names")
    marks = [given] if given else DELIMITERS
    cuts = [[name.strip(BLANK.encode()) for name in cut(line, mark)] for mark in marks]
    names = {name.encode() for column in wanted for name in column.names}
    # The delimiter with which the header has most columns of the schema.
    best = max(range(len(cuts)), key=lambda i: len(names & {*cuts[i]}))
    return _chosen(cuts[best], wanted), len(cuts[best]), marks[best]


def cut(line: bytes, delimiter: bytes) -> list[bytes]:
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


def _load_parquet(path: Path, wanted: Sequence[Wanted]) -> RawTable:
    """Read the columns of a Parquet file that the schema names."""
    from hdpfl_flower.data.arrow_columns import read_parquet

    def choose(header: Sequence[str]) -> Sequence[str]:
        return list(dict.fromkeys(header[at] for at in _chosen(header, wanted)))

    columns, rows = read_parquet(path, choose)
    found = {
        column: next(columns[name] for name in column.names if name in columns) for column in wanted
    }
    return RawTable(found, np.arange(rows), rows)
