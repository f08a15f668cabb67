r"""Records of a CSV file, each within a bound of bytes.

A record in RFC 4180's form has an even number of quotes, and each line end inside it follows an
odd number: lines are joined to records by that alone, so no content of a record changes another
one. A line with one quote too many, which no RFC 4180 writer writes, is lost alone unless a later
line closes it as RFC 4180 says.

A longer record than :data:`MAX_RECORD` is read through, its lines checked one by one, and stands
for itself as a text that cannot be cut; if it turns out to be none, its file is read again from its
second line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import IO, NamedTuple

from hdpfl_flower.data.columns import MAX_RECORD
from hdpfl_tools.tables.lines_read import LINES_AT_A_TIME, on_lines

_BOM = b"\xef\xbb\xbf"
_SHOWN = 100


class _Line(NamedTuple):
    """A physical line without its line end.

    Attributes:
        content: in UTF-8; of a long line, :func:`_uncut` of its beginning.
        is_odd: whether its quotes are odd in number.
        is_long: whether it is longer than a record may be.
    """

    content: bytes
    is_odd: bool
    is_long: bool


class Forms(NamedTuple):
    """Patterns of a record, of a cell with its delimiter, and of the lines of a record."""

    whole: re.Pattern[bytes]
    cell: re.Pattern[bytes]
    first: re.Pattern[bytes]
    middle: re.Pattern[bytes]
    last: re.Pattern[bytes]

    def open(self, lines: list[bytes]) -> bool:
        """Return whether ``lines`` begin a record that is not at its end."""
        return bool(self.first.fullmatch(lines[0])) and all(map(self.middle.fullmatch, lines[1:]))

    def goes_on(self, line: _Line) -> bool:
        """Return whether a record may include ``line``, an odd one at its end."""
        return bool((self.last if line.is_odd else self.middle).fullmatch(line.content))


def records_in(file: IO[bytes], encoding: str, marks: bytes) -> Iterator[bytes]:
    """Yield the records of a file, in UTF-8.

    Args:
        file: open at its beginning.
        encoding: one that decodes a line independently of the lines before it.
        marks: the delimiters that it may have.

    Guarantees:
        Takes memory for :data:`MAX_RECORD` bytes a few times, for any content.
    """
    both = [forms(marks, escaped) for escaped in (False, True)]
    lines = LinesRead(file, encoding)
    while (line := lines.next()) is not None:
        place = lines.place
        record = _joined(line, lines, both) if line.is_odd else line.content
        if record is None:  # this line is damaged, those after it are whole
            lines.seek(place)
        yield line.content if record is None else record


def _joined(first: _Line, lines: LinesRead, both: list[Forms]) -> bytes | None:
    """Return the record that begins with the odd line ``first``; None if none begins there."""
    begun, size, is_long = [first.content], len(first.content), first.is_long
    fitting = both
    while (line := lines.next()) is not None:
        size += 1 + len(line.content)
        if not is_long and (line.is_long or size > MAX_RECORD):
            is_long, fitting = True, [form for form in both if form.open(begun)]
        if not is_long:
            begun.append(line.content)
            if line.is_odd:
                record = b"\n".join(begun)
                plain, escaped = (form.whole.fullmatch for form in both)
                is_one = plain(record) or (escaped(record) and not escaped(begun[0]))
                return record if is_one else None
            continue
        if not line.is_long:
            fitting = [form for form in fitting if form.goes_on(line)]
        if not fitting:
            return None
        if line.is_odd:
            return _uncut(begun[0])
        del begun[1:]
    return None


class LinesRead:
    """Lines of a file, read anew from any place."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self.place = 0
        self._file, self._count = file, 0
        self._encoding = "" if encoding == "utf-8" else encoding

    def seek(self, place: int) -> None:
        """Continue with the line that begins at byte ``place``."""
        self._file.seek(place)
        self.place = place

    def next(self) -> _Line | None:
        """Return the next line; None at the end of the file."""
        raw = self._file.readline(MAX_RECORD + 1)
        if not raw:
            return None
        self._count += 1
        if self._count % LINES_AT_A_TIME == 0:
            on_lines.get()(self._count)
        length, quotes = len(raw), raw.count(b'"')
        is_long = length > MAX_RECORD and not raw.endswith(b"\n")
        more = raw
        while len(more) > MAX_RECORD and not more.endswith(b"\n"):
            more = self._file.readline(MAX_RECORD + 1)
            length += len(more)
            quotes += more.count(b'"')
        content = raw.removesuffix(b"\n")
        if self.place == 0 and not self._encoding:
            content = content.removeprefix(_BOM)
        self.place += length
        if is_long:
            content = _uncut(content)
        if self._encoding:
            content = content.decode(self._encoding, "replace").encode()
        return _Line(content, quotes % 2 == 1, is_long)


def _uncut(record: bytes) -> bytes:
    """Return a text that no delimiter cuts into cells, with the beginning of ``record``."""
    return b'"' + record[:_SHOWN].replace(b'"', b"").replace(b"\n", b" ")


@lru_cache
def forms(marks: bytes, escaped: bool = False) -> Forms:
    """Return the patterns for delimiters ``marks``.

    The delimiter stands before the cell; a quote in a cell is doubled, or else ``escaped`` by a
    backslash.

    A quote within a cell that begins without one is an ordinary character.
    """
    any_of = re.escape(marks)
    mark = rb"[%b]" % any_of
    blanks = b"" if b" " in marks else b" *+"
    content = rb'(?:[^"\\]++|\\.)*+' if escaped else rb'(?:[^"]++|"")*+'
    quoted = rb'%b"(?:%b)"%b' % (blanks, content, blanks)
    plain = rb'(?!%b")[^\n%b]*+' % (blanks, any_of)
    cell = rb"(?:%b|%b)" % (quoted, plain)
    caught = rb'(?:%b"(%b)"%b|(?!%b")([^\n%b]*+))' % (blanks, content, blanks, blanks, any_of)
    begun, ended = rb'%b"%b' % (blanks, content), rb'%b"%b' % (content, blanks)
    patterns = (
        rb"%b(?:%b%b)*+\r*+" % (cell, mark, cell),
        rb"(?:\A|%b)%b" % (mark, caught),
        rb"(?:%b%b)*+%b" % (cell, mark, begun),
        rb"(?:%b(?:%b%b)*+%b%b|%b)" % (ended, mark, cell, mark, begun, content),
        rb"%b(?:%b%b)*+\r*+" % (ended, mark, cell),
    )
    return Forms(*(re.compile(pattern, re.DOTALL) for pattern in patterns))


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
