"""Header of a table: names, delimiter, titles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from hdpfl_flower.data.columns import PLAIN, Notation
from hdpfl_flower.data.values import plain
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.csv_lines import cut
from hdpfl_tools.tables.sources.date_forms import is_date

DELIMITERS = (b",", b";", b"\t", b"|", b"^")
"""Delimiters tried on a header if the profile names none."""
TITLES = 20
"""Lines in which a header is searched."""
NOTATIONS = (PLAIN, *(Notation(*marks) for marks in (",", ",.", ".,", ".'", ". ", ", ")))
"""Notations of numbers, tried in this order on a table whose notation is not known."""
_SEPARATOR = re.compile(rb'"?sep=([^"\r\n])"?[,;\s]*', re.IGNORECASE)


@dataclass(frozen=True)
class Wanted:
    """Column to read.

    Attributes:
        names: allowed names, exactly one of which must be in the header.
        said: its name in errors: a name of the public schema, or a key of the profile.
        absent: whether the table does not have it, by the profile.
    """

    names: tuple[str, ...]
    said: str
    absent: bool = False


def header_name(name: str | bytes) -> str:
    r"""Return a header's name, with ASCII signs on one line.

    >>> header_name("chol\n(mg/dl)\u00a0"), header_name(b" a  b")
    ('chol (mg/dl)', 'a b')
    """
    text = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
    return " ".join(plain(text).split())


def lacking(header: Sequence[str | bytes], wanted: Sequence[Wanted]) -> list[str]:
    """Return a name of each wanted column that a header of keys lacks."""
    names = {*map(header_name, header)}
    lacked = [c for c in wanted if not c.absent and names.isdisjoint(map(header_name, c.names))]
    return [*dict.fromkeys(header_name(column.names[0]) for column in lacked)]


def header_of(
    lines: Iterator[bytes], wanted: Sequence[Wanted], given: bytes
) -> tuple[list[bytes], bytes, int, Iterator[bytes]]:
    """Return header cells, delimiter, number of titles, and records.

    The header is the first line, or, since reports begin with a title, the first of :data:`TITLES`
    that names every column of ``wanted``. Without such names a title is a line with at least two
    cells less than most lines, or with one that is not empty, and with two at most by any
    delimiter, as else a record could become the names.

    Raises:
        DataError: the file is empty.
    """
    first = [*islice(lines, 2 * TITLES)]
    mark = separator_in(first[0]) if first else b""
    first, given = first[1:] if mark else first, given or mark
    if not first:
        raise DataError("the table is empty; its first line must be a header of names")
    marks = [given] if given else DELIMITERS
    wanted = [column for column in wanted if not column.absent]
    names = {header_name(name) for column in wanted for name in column.names}
    place, mark = 0, marks[0]
    best = 0
    for number, line in enumerate(first[:TITLES]):
        cuts = {mark: {*map(header_name, cut(line, mark))} for mark in marks}
        # The delimiter that finds most of the wanted columns in the line.
        of_line = max(marks, key=lambda mark: len(names & cuts[mark]))
        if not number:
            mark, best = of_line, len(names & cuts[of_line])
        if wanted and all({*map(header_name, each.names)} & cuts[of_line] for each in wanted):
            place, mark, best = number, of_line, len(names)
            break
    if not best:
        mark, place = _header_by_form(first, marks)
    return cut(first[place], mark), mark, place, chain(first[place + 1 :], lines)


def _header_by_form(first: list[bytes], marks: Sequence[bytes]) -> tuple[bytes, int]:
    """Return delimiter and place of a header without known names."""
    headers = [(cut(first[0], mark), mark, 0) for mark in marks]
    is_names = any(sum(map(bool, cells)) > 2 for cells, _, _ in headers)
    for _, mark, _ in () if is_names else tuple(headers):
        cells = [cut(line, mark) for line in first]
        width, times = Counter(map(len, cells)).most_common(1)[0]
        place = next((place for place, row in enumerate(cells) if not is_title(row, width)), 0)
        is_header = times > 2 and 0 < place < TITLES and len(cells[place]) == width
        if is_header and not any(map(is_number_or_date, map(header_name, cells[place]))):
            headers.append((cells[place], mark, place))
    _, mark, place = max(headers, key=lambda candidate: (len(candidate[0]), candidate[2]))
    return mark, place


def is_title(cells: Sequence[object], width: int) -> bool:
    """Return whether a line is no header of ``width`` cells.

    R's header may have one cell less than its rows, which must not become names.
    """
    few = max(1, min(2, width - 3))
    return width > 2 and (len(cells) <= width - 2 or sum(map(bool, cells)) <= few)


def is_number_or_date(name: str) -> bool:
    """Return whether a text is a number or a date."""
    numbers = any(np.isfinite(notation.number_in(name.encode())) for notation in NOTATIONS)
    return numbers or is_date(name)


def separator_in(line: bytes) -> bytes:
    """Return the delimiter of a first line ``sep=;``."""
    match = _SEPARATOR.fullmatch(line)
    return match[1] if match else b""
