"""Cells of one table column, as numbers or texts.

No cell makes this code raise: an exception that a record can cause would disclose that
record without noise (docs/project/decisions.md). A cell that cannot be read is NaN and equals no
value.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Number in a cell: ASCII decimal notation, without nan, inf, hex, separators.

No digit can be matched in two ways, so a text that is no number is rejected in linear time.
"""

MAX_RECORD = 2**22
"""Bytes of a CSV record, or of a cell of other tables; 60,000 columns of numbers take 1 MB.

A longer record is left out, a longer cell empty: what one may hold bounds what one can ask for.
"""

BLANK = " \t\n\r\f\v"
"""ASCII characters trimmed from cells and schema values."""

_BLANK_BYTES = BLANK.encode()
_SIGNS = str.maketrans(
    dict.fromkeys([0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
    | dict.fromkeys(map(ord, "\u200b\u2060\ufeff"))  # of no width
    | dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
    | dict.fromkeys(map(ord, "\u2018\u2019\u02bc\u00b4`"), "'")
    | dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb"), '"')
)
"""Unicode blanks, minus signs and quotes, with the ASCII sign that a cell means by them."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile("|".join(_MONTHS), re.IGNORECASE | re.ASCII)
_FRACTION = re.compile(r"(\.[0-9]{6})[0-9]+")
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def row_digest(content: bytes) -> bytes:
    """Return an 8-byte digest of the content of a row."""
    return _of_row(content).digest()


def file_digest(path: Path) -> bytes:
    """Return :func:`row_digest` of a file's content, read piece by piece.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, _of_row).digest()


_of_row = partial(hashlib.blake2b, digest_size=8, person=b"row")


def plain(text: str) -> str:
    """Return ``text`` trimmed, with ASCII blanks, minus signs and quotes.

    Linear in its length. Quotes of a printer around the whole are removed.

    >>> plain(" \u22125\u00a0"), plain("\u201cyes\u201d"), plain("2\u202f090")
    ('-5', 'yes', '2 090')
    """
    if text.isascii():
        return text.strip(BLANK)
    changed = text.translate(_SIGNS).strip(BLANK)
    is_quoted = '"' not in text and changed[:1] == changed[-1:] == '"' != changed
    return changed[1:-1].strip(BLANK) if is_quoted else changed


def number_in(text: bytes) -> float:
    """Return the finite number in the trimmed ``text``, or NaN.

    >>> number_in(b"+1e0"), number_in(b"1_0"), number_in(b"1e999")
    (1.0, nan, nan)
    """
    # The pattern admits only texts that float() accepts, so that it cannot raise.
    number = float(text) if NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else math.nan


@dataclass(frozen=True)
class Notation:
    """Notation of numbers in the texts of a table.

    Attributes:
        decimal: the only mark that may stand before the fraction.
        thousands: separator allowed between groups of three digits; empty: none.
    """

    decimal: str = "."
    thousands: str = ""

    def number_in(self, text: bytes) -> float:
        """Return the finite number in the trimmed ``text``, or NaN.

        >>> comma = Notation(",", ".")
        >>> [comma.number_in(text) for text in (b"1.234,5", b"-7", b"1.5", b"1.23,4")]
        [1234.5, -7.0, nan, nan]
        """
        if self == PLAIN:
            return number_in(text)
        point, group = self.decimal.encode(), self.thousands.encode()
        if group and group in text:
            grouped = rb"[+-]?[0-9]{1,3}(%b[0-9]{3})+(%b[0-9]*)?"
            if not re.fullmatch(grouped % (re.escape(group), re.escape(point)), text):
                return math.nan
            text = text.replace(group, b"")
        if point != b".":
            if b"." in text:
                return math.nan
            text = text.replace(point, b".")
        return number_in(text)


PLAIN = Notation()
"""ASCII decimal notation with a decimal point."""


def days_in(text: bytes, formats: Sequence[str], century: int = 0) -> float:
    """Return days from 1970-01-01 to the date ``text``, or NaN.

    Args:
        text: trimmed already.
        formats: of :func:`datetime.datetime.strptime`, but ``%b`` is an English month of three
            letters on every machine; the first that fits counts.
        century: first of the hundred years in which a ``%y`` lies.

    >>> [days_in(each, ("%d.%m.%Y",)) for each in (b"02.01.1970", b"31.02.1970", b"1970-01-02")]
    [1.0, nan, nan]
    >>> days_in(b"2-JAN-70", ("%d-%b-%y",), 1970), days_in(b"2-JAN-70", ("%d-%b-%y",), 1900)
    (1.0, 1.0)
    """
    decoded = text.decode(errors="replace")
    for layout in formats:
        written, form = decoded, layout
        if "%b" in form:
            form = form.replace("%b", "-%m-")
            written = _MONTH.sub(_month_number, written, count=1)
        if "%f" in form:  # some databases write seven digits or more
            written = _FRACTION.sub(r"\1", written)
        try:
            # The calendar date as it is written, in any zone of the machine and of the text.
            moment = datetime.datetime.strptime(written, form)
            if "%y" in form:
                moment = moment.replace(year=century + (moment.year - century) % 100)
        except (ValueError, OverflowError):
            continue
        return float(moment.toordinal() - _EPOCH)
    return math.nan


def _month_number(month: re.Match[str]) -> str:
    return f"-{_MONTHS.index(month[0].lower()) + 1:02}-"


def value_key(value: str) -> float | bytes:
    """Return the comparison key: a finite number, else the UTF-8 bytes.

    >>> value_key(" 1") == value_key("1.0"), value_key("1_0")
    (True, b'1_0')
    """
    text = plain(value).encode(errors="surrogatepass")
    return text if math.isnan(number := number_in(text)) else number


@dataclass(frozen=True, repr=False, eq=False)
class Texts:
    """Column of texts, as of a CSV file; repeated texts are stored and read once.

    Attributes:
        values: the different texts, trimmed.
        rows: int64, shape ``(n,)``; the index in ``values`` of each row's text.
    """

    values: tuple[bytes, ...]
    rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, cells: Iterable[bytes]) -> Texts:
        """Return the column of ``cells``, one per row."""
        gathered = GatheredTexts()
        for cell in cells:
            gathered.add(cell)
        return gathered.texts()

    @cached_property
    def plain(self) -> tuple[bytes, ...]:
        """Values in ASCII signs; ids are read by the letter."""
        return tuple(
            text
            if text.isascii()
            else plain(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")
            for text in self.values
        )

    def numbers(self, notation: Notation = PLAIN) -> npt.NDArray[np.float64]:
        """Return the number in each row, shape ``(n,)``; NaN for none."""
        read = notation.number_in
        return np.array([read(text) for text in self.plain], dtype=np.float64)[self.rows]

    def days(self, formats: Sequence[str], century: int = 0) -> npt.NDArray[np.float64]:
        """Return days since 1970-01-01, shape ``(n,)``; NaN without a date."""
        days = [days_in(text, formats, century) for text in self.plain]
        return np.array(days, dtype=np.float64)[self.rows]

    def lookup(self, values: dict[bytes, int]) -> npt.NDArray[np.int64]:
        """Return the number mapped to each text, shape ``(n,)``; else -1."""
        return np.array([values.get(text, -1) for text in self.plain], dtype=np.int64)[self.rows]

    def cells(self, notation: Notation = PLAIN) -> Cells:
        """Return the cells as numbers and texts, none of them absent."""
        return Cells(self.numbers(notation), self, np.zeros(len(self.rows), dtype=bool))

    def texts(self) -> Texts:
        """Return the column itself."""
        return self

    def take(self, rows: npt.NDArray[np.int64]) -> Texts:
        """Return the column of these rows alone."""
        used, places = np.unique(self.rows[rows], return_inverse=True)
        return Texts(tuple(self.values[text] for text in used), places)

    def ids(self, notation: Notation = PLAIN) -> list[bytes]:
        """Return each text as an id; ``7.0``, or ``7,0`` with a decimal comma, becomes ``7``.

        Writers change a whole column from 7 to 7.0 when one id is missing: that changes no id.
        """
        whole = re.compile(rb"([0-9]+)%b0*" % re.escape(notation.decimal.encode()))
        same = [whole.fullmatch(text) for text in self.values]
        ids = [
            number[1] if number else text for number, text in zip(same, self.values, strict=True)
        ]
        return [ids[row] for row in self.rows.tolist()]


class GatheredTexts:
    """Column of texts, built row by row."""

    def __init__(self) -> None:
        """Start with an empty column."""
        self._known: dict[bytes, int] = {}
        self._rows = array("q")

    def add(self, cell: bytes) -> None:
        """Add the next row's cell."""
        self._rows.append(self._known.setdefault(cell, len(self._known)))

    def texts(self) -> Texts:
        """Return the column so far."""
        values = tuple(cell.strip(_BLANK_BYTES) for cell in self._known)
        # Not copied: the array is as large as the column and does not grow any more.
        rows = np.frombuffer(self._rows, dtype=np.int64) if self._rows else np.zeros(0, np.int64)
        return Texts(values, rows)


@dataclass(frozen=True, repr=False, eq=False)
class Cells:
    """One column, one cell per row.

    Attributes:
        numbers: float64, shape ``(n,)``; NaN where a cell holds no finite number.
        texts: the texts of the cells, empty where absent; None for a column of numbers.
        absent: bool, shape ``(n,)``; the cell is empty (a null, or a NaN).
    """

    numbers: npt.NDArray[np.float64]
    texts: Texts | None
    absent: Mask

    def lookup(self, values: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the index of each cell's value, shape ``(n,)``; else -1.

        Values that are numbers match every spelling of that number (``1``, ``1.0``, ``+1e0``);
        others match byte for byte.
        """
        index = np.full(len(self.numbers), -1, dtype=np.int64)
        keys = [value_key(value) for value in values]
        order = [i for i, key in enumerate(keys) if isinstance(key, float)]
        if order:
            order.sort(key=keys.__getitem__)
            numbers = np.array([keys[i] for i in order])
            # NaN sorts after every number and equals none. Of equal values the first one counts:
            # the sort above is stable, and the search finds the leftmost.
            places = np.searchsorted(numbers, self.numbers).clip(max=len(numbers) - 1)
            index = np.where(numbers[places] == self.numbers, np.array(order)[places], index)
        if self.texts is not None:
            # Reversed: of two equal values the first one counts.
            first = {key: i for i, key in reversed([*enumerate(keys)]) if isinstance(key, bytes)}
            places = self.texts.lookup(first)
            index = np.where(places >= 0, places, index)
        return index

    def missing(self, marks: Sequence[str]) -> Mask:
        """Return a mask of absent or marked cells, shape ``(n,)``."""
        return self.absent | (self.lookup(marks) >= 0)


class Column(Protocol):
    """Column as stored: texts (CSV) or any Arrow type (Parquet)."""

    def cells(self, notation: Notation = PLAIN) -> Cells:
        """Return the cells; ``notation`` applies to numbers in texts."""

    def days(self, formats: Sequence[str], century: int = 0) -> npt.NDArray[np.float64]:
        """Return days since 1970-01-01, shape ``(n,)``; NaN without a date."""

    def texts(self) -> Texts | None:
        """Return the cells as texts, numbers written out; None without text."""

    def take(self, rows: npt.NDArray[np.int64]) -> Column:
        """Return the column of these rows alone."""
