"""The cells of one column of a table: a number where a cell holds one, a text where there is text.

Nothing here raises because of a cell: an exception that a record can cause would disclose that
record without noise (docs/project/decisions.md). A cell that cannot be read is NaN and equals no
value.
"""

from __future__ import annotations

import datetime
import math
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""What counts as a number in a cell: ASCII decimal notation; no nan, inf, hex or separators."""

BLANK = " \t\n\r\f\v"
"""Trimmed from both ends of a cell and of a value of the schema (ASCII only)."""

_BLANK_BYTES = BLANK.encode()
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def number_in(text: bytes) -> float:
    """Return the finite number that ``text`` is, trimmed already; NaN for anything else.

    >>> number_in(b"+1e0"), number_in(b"1_0"), number_in(b"1e999")
    (1.0, nan, nan)
    """
    # The pattern admits only what float() accepts, so that it cannot raise.
    number = float(text) if NUMBER.fullmatch(text) else math.nan
    return number if math.isfinite(number) else math.nan


@dataclass(frozen=True)
class Notation:
    """How numbers are written in the texts of a table.

    Attributes:
        decimal: the mark before the fraction; no other is read as one.
        thousands: what may stand between groups of three digits; empty: nothing may.
    """

    decimal: str = "."
    thousands: str = ""

    def number_in(self, text: bytes) -> float:
        """Return the finite number that ``text`` is, trimmed already; NaN for anything else.

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
"""ASCII decimal notation, a point before the fraction."""


def days_in(text: bytes, formats: Sequence[str]) -> float:
    """Return the days from 1970-01-01 to the date that ``text`` is, NaN for none.

    Args:
        text: trimmed already.
        formats: of :func:`datetime.datetime.strptime`; the first that fits counts.

    >>> [days_in(each, ("%d.%m.%Y",)) for each in (b"02.01.1970", b"31.02.1970", b"1970-01-02")]
    [1.0, nan, nan]
    """
    decoded = text.decode(errors="replace")
    for each in formats:
        try:
            # Naive on purpose: the calendar date as it is written, whatever the machine's zone.
            found = datetime.datetime.strptime(decoded, each)
        except (ValueError, OverflowError):
            continue
        return float(found.toordinal() - _EPOCH)
    return math.nan


def value_key(value: str) -> float | bytes:
    """Return what a value is compared by: its number if it is a finite one, else its UTF-8 bytes.

    >>> value_key(" 1") == value_key("1.0"), value_key("1_0")
    (True, b'1_0')
    """
    text = value.strip(BLANK).encode(errors="surrogatepass")
    return text if math.isnan(number := number_in(text)) else number


@dataclass(frozen=True, repr=False, eq=False)
class Texts:
    """A column of texts; a text that occurs often is kept, and read, once.

    Attributes:
        values: the different texts, trimmed.
        rows: int64, shape ``(n,)``; the index in ``values`` of each row's text.
    """

    values: tuple[bytes, ...]
    rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, cells: Iterable[bytes]) -> Texts:
        """Return the column of ``cells``, a row each."""
        gathered = GatheredTexts()
        for cell in cells:
            gathered.add(cell)
        return gathered.texts()

    def numbers(self, notation: Notation = PLAIN) -> npt.NDArray[np.float64]:
        """Return, shape ``(n,)``, the number that each row holds, NaN for none."""
        read = notation.number_in
        return np.array([read(text) for text in self.values], dtype=np.float64)[self.rows]

    def days(self, formats: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return, shape ``(n,)``, the days since 1970-01-01 of each row's date, NaN for none."""
        found = [days_in(text, formats) for text in self.values]
        return np.array(found, dtype=np.float64)[self.rows]

    def lookup(self, values: dict[bytes, int]) -> npt.NDArray[np.int64]:
        """Return, shape ``(n,)``, the number that ``values`` has for each row's text, else -1."""
        return np.array([values.get(text, -1) for text in self.values], dtype=np.int64)[self.rows]

    def ids(self, notation: Notation = PLAIN) -> list[bytes]:
        """Return each row's text as an id, ``7.0`` as ``7`` (``7,0`` with a decimal comma).

        Writers change a whole column from 7 to 7.0 when one id is missing: that changes no id.
        """
        whole = re.compile(rb"([0-9]+)%b0*" % re.escape(notation.decimal.encode()))
        same = [whole.fullmatch(text) for text in self.values]
        ids = [found[1] if found else text for found, text in zip(same, self.values, strict=True)]
        return [ids[row] for row in self.rows.tolist()]


class GatheredTexts:
    """A column of texts while its rows are read, one after another."""

    def __init__(self) -> None:
        """Start without a row."""
        self._known: dict[bytes, int] = {}
        self._rows = array("q")

    def add(self, cell: bytes) -> None:
        """Add the next row's cell."""
        self._rows.append(self._known.setdefault(cell, len(self._known)))

    def texts(self) -> Texts:
        """Return the column so far."""
        values = tuple(cell.strip(_BLANK_BYTES) for cell in self._known)
        # Not copied: the array is as large as the column, and nobody adds to it any more.
        rows = np.frombuffer(self._rows, dtype=np.int64) if self._rows else np.zeros(0, np.int64)
        return Texts(values, rows)


@dataclass(frozen=True, repr=False, eq=False)
class Cells:
    """One column, a cell a row.

    Attributes:
        numbers: float64, shape ``(n,)``; NaN where a cell holds no finite number.
        texts: the texts of the cells, empty where absent; None for a column of numbers.
        absent: bool, shape ``(n,)``; there is nothing in the cell (a null, or a NaN).
    """

    numbers: npt.NDArray[np.float64]
    texts: Texts | None
    absent: Mask

    @classmethod
    def of_texts(cls, texts: Texts, notation: Notation = PLAIN) -> Cells:
        """Return a column of texts, none of them absent."""
        return cls(texts.numbers(notation), texts, np.zeros(len(texts.rows), dtype=bool))

    def lookup(self, values: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return, shape ``(n,)``, the index of the value that each cell holds, -1 for none.

        Values that are numbers match every spelling of that number (``1``, ``1.0``, ``+1e0``);
        others match byte for byte.
        """
        found = np.full(len(self.numbers), -1, dtype=np.int64)
        keys = [value_key(value) for value in values]
        order = [i for i, key in enumerate(keys) if isinstance(key, float)]
        if order:
            order.sort(key=keys.__getitem__)
            numbers = np.array([keys[i] for i in order])
            # NaN sorts behind every number and equals none. Of equal values the first one counts:
            # the sort above is stable, and the search finds the leftmost.
            at = np.searchsorted(numbers, self.numbers).clip(max=len(numbers) - 1)
            found = np.where(numbers[at] == self.numbers, np.array(order)[at], found)
        if self.texts is not None:
            # Reversed: of two equal values the first one counts.
            first = {key: i for i, key in reversed([*enumerate(keys)]) if isinstance(key, bytes)}
            at = self.texts.lookup(first)
            found = np.where(at >= 0, at, found)
        return found

    def missing(self, marks: Sequence[str]) -> Mask:
        """Return, shape ``(n,)``, whether a cell is absent or holds one of ``marks``."""
        return self.absent | (self.lookup(marks) >= 0)


class Column(Protocol):
    """A column as it lies in a file: of texts in a CSV, of any Arrow type in a Parquet file."""

    def cells(self, notation: Notation = PLAIN) -> Cells:
        """Return what the cells hold; ``notation`` is that of numbers in texts."""

    def days(self, formats: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return, shape ``(n,)``, the days since 1970-01-01 of each date, NaN for none."""

    def texts(self) -> Texts | None:
        """Return the cells as texts, numbers written out; None for a type that has no text."""


@dataclass(frozen=True, repr=False, eq=False)
class TextColumn:
    """A column of a CSV file.

    Attributes:
        content: its texts.
    """

    content: Texts

    def cells(self, notation: Notation = PLAIN) -> Cells:
        """Return what the cells hold."""
        return Cells.of_texts(self.content, notation)

    def days(self, formats: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return, shape ``(n,)``, the days since 1970-01-01 of each date, NaN for none."""
        return self.content.days(formats)

    def texts(self) -> Texts:
        """Return the cells as they are."""
        return self.content
