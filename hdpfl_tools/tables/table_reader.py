"""Columns of cells from a CSV or Parquet file of any content.

A CSV is read as RFC 4180 says: a line ends at LF or CR LF, and a cell in quotes may hold line ends;
:mod:`hdpfl_tools.tables.csv_lines` joins them to records. A record that RFC 4180 cannot read is
tried again with a backslash before the quotes in a cell, as MySQL and Spark write them. Every
encoding that a profile may name decodes a line independently of the lines before it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import (
    PLAIN,
    Column,
    GatheredTexts,
    Notation,
    plain,
    row_digest,
)
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.csv_lines import forms, records_in

DELIMITERS = (b",", b";", b"\t", b"|")
"""Delimiters tried on a header if the profile names none."""
TITLES = 20
"""Lines in which a header is searched."""
_SEPARATOR = re.compile(rb'"?sep=([^"\r\n])"?[,;\s]*', re.IGNORECASE)
_EXCEL = "an Excel file or an archive, not a CSV; save it as CSV (UTF-8) in Excel"
_OTHERS = {  # .xlsx begins as any zip archive
    b"PK\x03\x04": _EXCEL,
    b"\xd0\xcf\x11\xe0": _EXCEL,
    b"PAR1": "a Parquet file, not a CSV; set 'data.format' to \"parquet\" in the profile",
    b"\x1f\x8b": "a compressed file, not a CSV; unpack it (gunzip)",
}
"""First bytes of other file kinds, with the remedy."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Redacted:
    """Base class that hides private counts or records in its text."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<private>)"


@dataclass(frozen=True)
class Form:
    """Format of a table's texts.

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
    """Column to read.

    Attributes:
        names: allowed names, exactly one of which must be in the header.
        said: its name in errors: a name of the public schema, or a key of the profile.
    """

    names: tuple[str, ...]
    said: str


@dataclass(frozen=True, repr=False, eq=False)
class RawTable(Redacted):
    """Columns as stored in a file.

    Attributes:
        columns: those that were wanted, one length n: of the rows that could be cut into cells.
        positions: int64 ``(n,)``; the row of the file, from 0, of each; blank lines do not count.
        rows: rows in the file.
        unpaired: of the rows that could not be cut, those with other quotes than RFC 4180's.
        digests: uint64 ``(n,)``, of each row, of all its columns; None unless asked for.
        lost: the rows that could not be cut; None unless asked for.
        withdrawn: units that were left out, with all of their rows, as withdrawn.
    """

    columns: Mapping[Wanted, Column]
    positions: npt.NDArray[np.int64]
    rows: int
    unpaired: int = 0
    digests: npt.NDArray[np.uint64] | None = None
    lost: LostRows | None = None
    withdrawn: int = 0


@dataclass(frozen=True, repr=False, eq=False)
class LostRows(Redacted):
    """Rows that could not be cut, for the site's own screen.

    Attributes:
        rows: place of each in the file, from 0; rows between two damaged quotes have one.
        cells: of each, as its delimiters alone cut it.
        unpaired: whether its quotes are not RFC 4180's.
        places: of each wanted column in the header.
        width: cells of the header.
        doubtful: lines in cells of other rows that look like rows.
    """

    rows: tuple[int, ...]
    cells: tuple[tuple[bytes, ...], ...]
    unpaired: tuple[bool, ...]
    places: Mapping[Wanted, int]
    width: int
    doubtful: int


def load_table(
    path: Path,
    file_format: str,
    wanted: Sequence[Wanted],
    form: Form = AS_USUAL,
    *,
    digests: bool = False,
    lost: bool = False,
) -> RawTable:
    """Return columns ``wanted`` of the file at ``path``, ``csv`` or ``parquet``.

    Args:
        path: the file.
        file_format: of it.
        wanted: the columns.
        form: of the texts of a CSV.
        digests: whether rows are digested, too.
        lost: whether rows that cannot be cut are kept, too.

    Raises:
        DataError: the file is missing, of another kind, or lacks one of the columns.
    """
    if file_format == "csv":
        return _load_csv(path, wanted, form, digests=digests, lost=lost)
    if file_format == "parquet":
        return _load_parquet(path, wanted, digests)
    raise DataError("a table is 'csv' or 'parquet'; name one of them as its format")


def lines_of(path: Path, form: Form) -> Iterator[bytes]:
    r"""Yield non-blank CSV records in UTF-8 without line ends (\n, \r\n).

    A record is a line, or the lines from an odd number of quotes to the next if they make one.

    Guarantees:
        No byte of a record raises: bytes that its encoding cannot decode stay as they are in UTF-8,
        and become U+FFFD in others. Each record written as RFC 4180 says is yielded as written,
        but one above ``MAX_RECORD`` bytes as a text that cannot be cut.

    Raises:
        DataError: the file is not there, is an Excel file, has lines that end with \r alone, or is
            in UTF-16.
    """
    marks = form.delimiter.encode() or b"".join(DELIMITERS)
    is_header = True
    try:
        with path.open("rb") as file:
            _refuse_other_kinds(file.read(4))
            file.seek(0)
            for record in records_in(file, form.encoding, marks):
                if record.strip():
                    line = record.rstrip(b"\r")
                    if is_header and b"\r" in re.sub(rb'"[^"]*"|\r\n', b"", line):
                        raise DataError(
                            "the table's lines end with a carriage return alone, as on old Macs; "
                            "save it with the line ends of Unix or Windows"
                        )
                    is_header = False
                    yield line
    except OSError:
        raise DataError(
            "the table is not there or cannot be read; check its path and its permissions"
        ) from None


def _refuse_other_kinds(first: bytes) -> None:
    """Refuse a file by its first four bytes: another kind, or a text of two bytes a character.

    Of UTF-16 one foreign byte in a record would change all that follow.
    """
    for begin, said in _OTHERS.items():
        if first.startswith(begin):
            raise DataError(f"the table is {said}")
    if first[:2] in _UTF_16:
        raise DataError(
            "the table is in UTF-16, of which one damaged record would change others; save it as "
            "CSV (UTF-8), or run: iconv -f UTF-16 -t UTF-8"
        )
    if b"\0" in first:
        raise DataError(
            "the table begins with bytes of 0, which no text has: it is no CSV, or UTF-16 without "
            "its mark; save it as CSV (UTF-8)"
        )


def _chosen(names: Sequence[str | bytes], wanted: Sequence[Wanted]) -> list[int]:
    """Return each wanted column's place in the header ``names``; errors name no other column.

    Raises:
        DataError: the header lacks one of them, or has it twice.
    """
    header = [header_name(name) for name in names]
    places = [
        [place for place, name in enumerate(header) if name in {*map(header_name, column.names)}]
        for column in wanted
    ]
    absent = [column.said for column, matching in zip(wanted, places, strict=True) if not matching]
    if absent:
        listed = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
        raise DataError(
            f"the table has no column {listed} of the schema; name it in the header (the first "
            "line, read in 'data.encoding'), or write its name here: name = … in "
            "[data.columns.NAME] of the profile"
        )
    for column, matching in zip(wanted, places, strict=True):
        if len(matching) > 1:
            raise DataError(
                f"the table has column {column.said} twice, or under two of its names; remove or "
                "rename one, or name one in 'data.columns' of the profile"
            )
    return [matching[0] for matching in places]


def header_name(name: str | bytes) -> str:
    r"""Return a header's name, with ASCII signs on one line.

    >>> header_name("chol\n(mg/dl)\u00a0"), header_name(b" a  b")
    ('chol (mg/dl)', 'a b')
    """
    text = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
    return " ".join(plain(text).split())


def _load_csv(
    path: Path, wanted: Sequence[Wanted], form: Form, *, digests: bool, lost: bool
) -> RawTable:
    """Read the records of a CSV; wrong cell counts are only counted."""
    lines = lines_of(path, form)
    places, full, delimiter = _header(lines, wanted, form.delimiter.encode())
    # A line may lack the cells of nameless last columns: some writers end the header alone with a
    # delimiter.
    width = len(full)
    least = max([place + 1 for place, name in enumerate(full) if name], default=width)
    uncut = UncutRows(delimiter, least)
    columns = {place: GatheredTexts() for place in places}
    positions, rows, unpaired, digested = array("q"), 0, 0, bytearray()
    as_float = re.compile(rb"%b0+(?![0-9])" % re.escape(form.notation.decimal.encode()))
    for row, line in enumerate(lines):
        rows += 1
        cells = cut(line, delimiter)
        # Only this record is left out: its cells fit no columns, and an error would disclose it.
        if not least <= len(cells) <= width:
            unpaired += uncut.add(row, line, cells, keep=lost)
            continue
        if lost and b"\n" in line:
            uncut.doubtful += len(rows_in(line, delimiter, least)) - 1
        positions.append(row)
        for place, column in columns.items():
            column.add(cells[place])
        if digests:
            # Before the cut, which the schema's names may decide. For a single cell writers turn a
            # whole column from 7 to 7.0, or put it in quotes: that draws no other row again.
            same = as_float.sub(b"", line).replace(b'"', b"")
            digested += row_digest(same)
    content = {place: column.texts() for place, column in columns.items()}
    return RawTable(
        {column: content[place] for column, place in zip(wanted, places, strict=True)},
        np.array(positions, dtype=np.int64),
        rows,
        unpaired,
        np.frombuffer(bytes(digested), dtype=np.uint64) if digests else None,
        uncut.lost(dict(zip(wanted, places, strict=True)), width) if lost else None,
    )


class UncutRows:
    """Rows that cannot be cut, gathered for the site's own screen."""

    def __init__(self, delimiter: bytes, least: int) -> None:
        """Start without rows; ``least`` cells make a row."""
        self.doubtful = 0
        self._delimiter, self._least = delimiter, least
        self._rows: list[tuple[int, tuple[bytes, ...], bool]] = []

    def add(self, row: int, line: bytes, cells: list[bytes], *, keep: bool = True) -> bool:
        """Add a row; return whether its quotes do not pair."""
        is_unpaired = not cells or b"\n" in line
        if keep:
            pieces = rows_in(line, self._delimiter, self._least) if is_unpaired else [cells]
            self._rows += [(row, tuple(piece), is_unpaired) for piece in pieces]
        return is_unpaired

    def lost(self, places: Mapping[Wanted, int], width: int) -> LostRows:
        """Return all of them; see :class:`LostRows`."""
        rows, cells, unpaired = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        return LostRows(rows, cells, unpaired, places, width, self.doubtful)


def rows_in(record: bytes, delimiter: bytes, least: int) -> list[list[bytes]]:
    r"""Return lines cut without quotes, short ones joined.

    >>> rows_in(b'1,"a,2\n3,b,4\nc",5', b",", 3)
    [[b'1', b'a', b'2'], [b'3', b'b', b'4\nc', b'5']]
    """
    rows: list[list[bytes]] = []
    for line in record.replace(b'"', b"").split(b"\n"):
        cells = line.split(delimiter)
        if not rows or len(cells) >= max(least, 2):
            rows.append(cells)
        else:
            rows[-1] = [*rows[-1][:-1], rows[-1][-1] + b"\n" + cells[0], *cells[1:]]
    return rows


def _header(
    lines: Iterator[bytes], wanted: Sequence[Wanted], given: bytes
) -> tuple[list[int], list[str], bytes]:
    """Return the columns' places, the header's names and the delimiter.

    The header is the first line, or the first of :data:`TITLES` that names every column: reports
    begin with a title. Lines before it are no records.

    Raises:
        DataError: with no delimiter the first line has every column of the schema.
    """
    headers: list[tuple[list[str], bytes]] = []
    names = {header_name(name) for column in wanted for name in column.names}
    for line in islice(lines, TITLES):
        if not headers and (mark := separator_in(line)):
            given = given or mark
            continue
        marks = [given] if given else DELIMITERS
        cuts = [[*map(header_name, cut(line, mark))] for mark in marks]
        # Choose the delimiter that finds most schema columns in the header.
        best = max(range(len(cuts)), key=lambda i: len(names & {*cuts[i]}))
        headers.append((cuts[best], marks[best]))
        if all({*map(header_name, column.names)} & {*cuts[best]} for column in wanted):
            break
    else:
        headers = headers[:1]
    if not headers:
        raise DataError("the table is empty; its first line must be a header of names")
    header, delimiter = headers[-1]
    return _chosen(header, wanted), header, delimiter


def separator_in(line: bytes) -> bytes:
    """Return the delimiter of a first line ``sep=;``."""
    match = _SEPARATOR.fullmatch(line)
    return match[1] if match else b""


def cut(line: bytes, delimiter: bytes) -> list[bytes]:
    r"""Return the unquoted cells of a record; none for unpaired quotes.

    >>> cut(b'a, "b ""c"",",5"', b","), cut(b'a,"b" c', b",")
    ([b'a', b'b "c",', b'5"'], [])
    >>> cut(rb'1,"a \"b\", c"', b",")
    [b'1', b'a "b", c']
    """
    if b'"' not in line:
        return line.split(delimiter)
    cells = line[1:-1].split(b'"%b"' % delimiter)
    if line[:1] == line[-1:] == b'"' and line.count(b'"') == 2 * len(cells):
        return cells  # all in quotes, and no quote within
    for escaped in (False, True):
        form = forms(delimiter, escaped)
        if form.whole.fullmatch(line):
            mark = b'\\"' if escaped else b'""'
            pairs = form.cell.findall(line)
            return [quoted.replace(mark, b'"') if quoted else bare for quoted, bare in pairs]
    return []


def _load_parquet(path: Path, wanted: Sequence[Wanted], digests: bool) -> RawTable:
    """Read the schema's columns of a Parquet file."""
    from hdpfl_tools.tables.arrow_columns import read_parquet, row_digests

    names: list[str] = []

    def choose(header: Sequence[str]) -> Sequence[str]:
        names.extend(header[place] for place in _chosen(header, wanted))
        return list(dict.fromkeys(names))

    columns, rows = read_parquet(path, choose)
    chosen = {column: columns[name] for column, name in zip(wanted, names, strict=True)}
    return RawTable(chosen, np.arange(rows), rows, digests=row_digests(path) if digests else None)
