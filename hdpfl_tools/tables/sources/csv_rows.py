"""Records of a CSV file of any content, in batches of columns.

A CSV is read as RFC 4180 says: a line ends at LF or CR LF, and a cell in quotes may hold line ends;
``csv_lines.py`` joins them to records. A record that RFC 4180 cannot read is tried again with a
backslash before the quotes in a cell, as MySQL and Spark write them. Every encoding that a profile
may name decodes a line independently of the lines before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.data.columns import PLAIN, Notation, row_digest
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.csv_lines import cut, records_in, rows_in
from hdpfl_tools.tables.sources.file_kinds import opened_text
from hdpfl_tools.tables.sources.header import DELIMITERS, Wanted, header_name, header_of

_BATCH = 2**24
"""Bytes of records that are cut at a time."""


@dataclass(frozen=True)
class Form:
    """Format of a table's texts, and the part of its file.

    Attributes:
        encoding: of a CSV, a name of Python's codecs.
        delimiter: between the cells of a CSV; empty: found by the header.
        notation: of numbers.
        sheet: of a workbook; empty: the only one that holds something.
        select: query of a database in its own SQL; empty: its only table.
        skip: lines before the header; 0: found.
    """

    encoding: str = "utf-8"
    delimiter: str = ""
    notation: Notation = PLAIN
    sheet: str = ""
    select: str = ""
    skip: int = 0


AS_USUAL = Form()


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


def lines_of(path: Path, form: Form) -> Iterator[bytes]:
    r"""Yield non-blank CSV records in UTF-8 without line ends (\n, \r\n).

    A record is a line, or the lines from an odd number of quotes to the next if they make one.

    Guarantees:
        No byte of a record raises: bytes that its encoding cannot decode stay as they are in UTF-8,
        and become U+FFFD in others. Each record written as RFC 4180 says is yielded as written,
        but one above ``MAX_RECORD`` bytes as a text that cannot be cut.

    Raises:
        DataError: the file is not there, is of another kind, has lines that end with \r alone, or
            is in UTF-16.
    """
    marks = form.delimiter.encode() or b"".join(DELIMITERS)
    is_header = True
    try:
        with opened_text(path) as file:
            for record in records_in(file, form.encoding, marks):
                if record.strip():
                    line = record.rstrip(b"\r")
                    if is_header and b"\r" in re.sub(rb'"[^"]*"|\r\n', b"", line):
                        raise DataError(
                            "the table's lines end with only a carriage return, as on old Macs; "
                            "save it with the line ends of Unix or Windows"
                        )
                    is_header = False
                    yield line
    except OSError:
        raise DataError(
            "the table is not there or cannot be read; check its path and its permissions"
        ) from None


class CsvRows:
    """One pass over the records of a CSV, in batches of columns.

    Attributes:
        header: names of the columns.
        titles: lines before the header that are passed over.
        rows, unpaired: as in :class:`RawTable`, of the records so far.
        uncut: the records that cannot be cut.
    """

    def __init__(self, path: Path, form: Form, wanted: Sequence[Wanted] = ()) -> None:
        """Read the header, told from titles by ``wanted`` columns."""
        lines = islice(lines_of(path, form), form.skip, None)
        cells, self.delimiter, self.titles, self._lines = header_of(
            lines, wanted, form.delimiter.encode()
        )
        self.header: list[bytes | str] = [*cells]
        # A line may lack the cells of nameless last columns: some writers end the header alone
        # with a delimiter.
        named = [place + 1 for place, name in enumerate(self.header) if header_name(name)]
        self._least = max(named, default=len(self.header))
        self.rows = self.unpaired = 0
        self.uncut = UncutRows(self.delimiter, self._least)
        self._as_float = re.compile(rb"%b0+(?![0-9])" % re.escape(form.notation.decimal.encode()))

    def batches(
        self, places: Sequence[int], *, digests: bool = False, lost: bool = False
    ) -> Iterator[Batch]:
        """Yield the columns at ``places``; see ``load_table``."""
        width = len(self.header)
        # Records are cut here: readers of others' making let a damaged one alter its neighbours.
        # Then each is written anew as RFC 4180 says, and only their cells are found in bulk.
        mark = self.delimiter if self.delimiter < b"\x80" else b","
        canonical, positions, digested, size = list[bytes](), list[int](), bytearray(), 0
        for line in self._lines:
            row, self.rows = self.rows, self.rows + 1
            is_plain = b'"' not in line and b"\r" not in line and b"\n" not in line
            count = line.count(mark) + 1 if is_plain and mark == self.delimiter else 0
            if count != width:
                cells = cut(line, self.delimiter)
                # Only this record is left out: its cells fit no columns, and an error would
                # disclose it.
                if not self._least <= len(cells) <= width:
                    self.unpaired += self.uncut.add(row, line, cells, keep=lost)
                    continue
                if lost and b"\n" in line:
                    pieces = rows_in(line, self.delimiter, self._least)
                    self.uncut.doubtful += len(pieces) - 1
            if digests:
                # Before the cut, which the schema's names may decide. For a single cell writers
                # turn a whole column from 7 to 7.0, or put it in quotes: that draws no other row
                # again.
                same = self._as_float.sub(b"", line).replace(b'"', b"")
                digested += row_digest(same)
            canonical.append(line if count == width else _quoted(cells, width, mark))
            positions.append(row)
            size += len(canonical[-1])
            if size > _BATCH:
                yield _batch(canonical, positions, digested, mark, places, width)
                canonical, positions, digested, size = [], [], bytearray(), 0
        if canonical:
            yield _batch(canonical, positions, digested, mark, places, width)


class Batch(NamedTuple):
    """Records of a table: columns, positions, digests."""

    columns: list[Any]
    positions: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]


def _quoted(cells: Sequence[bytes], width: int, mark: bytes) -> bytes:
    quoted = mark.join(b'"%b"' % cell.replace(b'"', b'""') for cell in cells)
    return quoted + mark * (width - len(cells))


def _batch(
    lines: list[bytes],
    positions: list[int],
    digested: bytearray,
    mark: bytes,
    places: Sequence[int],
    width: int,
) -> Batch:
    """Return the cells of records in RFC 4180's form."""
    names = mark.join(b"%d" % place for place in range(width))
    used = [str(place) for place in places]
    # A header first: of the first line a mark of UTF-8 would be cut off.
    content = b"\n".join([names, *lines, b""])
    table = csv.read_csv(
        pa.py_buffer(content),
        csv.ReadOptions(use_threads=False, block_size=len(content) + 1),
        csv.ParseOptions(
            delimiter=mark.decode(),
            quote_char='"',
            double_quote=True,
            escape_char=False,
            newlines_in_values=True,
            ignore_empty_lines=False,
        ),
        csv.ConvertOptions(
            column_types=dict.fromkeys(used, pa.binary()),
            include_columns=used,
            strings_can_be_null=False,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    return Batch(
        [column.combine_chunks().cast(pa.large_binary()) for column in table.columns],
        np.array(positions, dtype=np.int64),
        np.frombuffer(bytes(digested), dtype=np.uint64),
    )


class UncutRows:
    """Rows that cannot be cut, gathered for the site's own screen."""

    def __init__(self, delimiter: bytes, least: int) -> None:
        """Start without rows; ``least`` cells make a row."""
        self.doubtful = 0
        self._delimiter, self._least = delimiter, least
        self._rows: list[tuple[int, tuple[bytes, ...], bool]] = []

    @classmethod
    def stored(cls, rows: list[tuple[int, tuple[bytes, ...], bool]], doubtful: int) -> UncutRows:
        """Return rows that were gathered before."""
        uncut = cls(b",", 0)
        uncut._rows, uncut.doubtful = rows, doubtful
        return uncut

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
