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
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.values import BLANK, number_in, plain, value_key

Mask = npt.NDArray[np.bool_]


MAX_RECORD = 2**22
"""Bytes of a CSV record, or of a cell of other tables; 60,000 columns of numbers take 1 MB.

A longer record is left out, a longer cell empty: what one may hold bounds what one can ask for.
"""


BLANK_BYTES = BLANK.encode()
_TRUTHS = {b"true": 1.0, b"false": 0.0}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile("|".join(_MONTHS), re.IGNORECASE | re.ASCII)
_FRACTION = re.compile(r"(\.[0-9]{6})[0-9]+")
_JOINED = "(?:%[YymdHMS]){2,}"
_EPOCH = datetime.date(1970, 1, 1).toordinal()
ISO_DATE = "%Y-%m-%d"
"""Form in which an import writes dates of a type; each column reads it, too."""
PARTIAL = {"%Y-%m": (0, 15), "%Y": (7, 1)}
"""Forms of dates of lower precision, as FHIR has them: the month (0: as written) and day read."""


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
            grouped = rb"[+-]?[1-9][0-9]{0,2}(%b[0-9]{3})+(%b[0-9]*)?"
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


@cache
def _widths(form: str) -> re.Pattern[str]:
    """Return a pattern in which joined parts of a date have all their digits.

    ``strptime`` reads 1970111 by %Y%m%d, and one of two dates by chance.
    """
    written = []
    for piece in re.split(f"({_JOINED})", form):
        parts = piece.split("%")[1:] if re.fullmatch(_JOINED, piece) else []
        written += ["[0-9]{4}" if part == "Y" else "[0-9]{2}" for part in parts] or [".*"]
    return re.compile("".join(written), re.DOTALL)


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
    >>> days_in(b"19700102", ("%Y%m%d",)), days_in(b"1970111", ("%Y%m%d",))
    (1.0, nan)
    """
    decoded = text.decode(errors="replace")
    for layout in formats:
        written, form = decoded, layout
        if "%b" in form:
            form = form.replace("%b", "-%m-")
            written = _MONTH.sub(_month_number, written, count=1)
        if "%f" in form:  # some databases write seven digits or more
            written = _FRACTION.sub(r"\1", written)
        if not _widths(form).fullmatch(written):
            continue
        try:
            # The calendar date as it is written, in any zone of the machine and of the text.
            moment = datetime.datetime.strptime(written, form)
            if form in PARTIAL:
                month, day = PARTIAL[form]
                moment = moment.replace(month=month or moment.month, day=day)
            if "%y" in form:
                moment = moment.replace(year=century + (moment.year - century) % 100)
        except (ValueError, OverflowError):
            continue
        return float(moment.toordinal() - _EPOCH)
    return math.nan


def _number_in(text: bytes, notation: Notation) -> float:
    """Return the number in ``text``; 1 and 0 for true and false in any letters.

    A text among booleans makes numpy and pandas write all of them as True and False.
    """
    truth = _TRUTHS.get(text.lower())
    return notation.number_in(text) if truth is None else truth


def _month_number(month: re.Match[str]) -> str:
    return f"-{_MONTHS.index(month[0].lower()) + 1:02}-"


@dataclass(frozen=True, repr=False, eq=False)
class Texts:
    """Column of texts; repeated texts are stored and read once.

    Attributes:
        values: the different texts, trimmed.
        rows: int64, shape ``(n,)``; the index in ``values`` of each row's text.
        absent: bool, shape ``(n,)``; cells that a source holds as null, of an empty text. None: no
            cell is.
    """

    values: tuple[bytes, ...]
    rows: npt.NDArray[np.int64]
    absent: Mask | None = None

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
        """Return the number in each row, shape ``(n,)``; NaN for none, 0 and 1 for booleans."""
        numbers = [_number_in(text, notation) for text in self.plain]
        return np.array(numbers, dtype=np.float64)[self.rows]

    def days(self, formats: Sequence[str], century: int = 0) -> npt.NDArray[np.float64]:
        """Return days since 1970-01-01, shape ``(n,)``; NaN without a date.

        ISO 8601 needs no format: an import writes dates of a type so, whatever else their column
        holds.
        """
        used = (*formats, ISO_DATE)
        days = [days_in(text, used, century) for text in self.plain]
        return np.array(days, dtype=np.float64)[self.rows]

    def lookup(self, values: dict[bytes, int]) -> npt.NDArray[np.int64]:
        """Return the number mapped to each text, shape ``(n,)``; else -1."""
        return np.array([values.get(text, -1) for text in self.plain], dtype=np.int64)[self.rows]

    def cells(self, notation: Notation = PLAIN) -> Cells:
        """Return the cells as numbers and texts."""
        absent = np.zeros(len(self.rows), dtype=bool) if self.absent is None else self.absent
        return Cells(self.numbers(notation), self, absent)

    def take(self, rows: npt.NDArray[np.int64]) -> Texts:
        """Return the column of these rows alone."""
        used, places = np.unique(self.rows[rows], return_inverse=True)
        absent = None if self.absent is None else self.absent[rows]
        return Texts(tuple(self.values[text] for text in used), places, absent)

    def ids(self, notation: Notation = PLAIN) -> list[bytes]:
        """Return each text as an id; ``7.0``, or ``7,0`` with a decimal comma, becomes ``7``.

        Writers change a whole column from 7 to 7.0 when one id is missing: that changes no id
        below 2⁵³, and an import refuses a column of floats that holds a longer one.
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
        values = tuple(cell.strip(BLANK_BYTES) for cell in self._known)
        # Not copied: the array is as large as the column and does not grow any more.
        rows = np.frombuffer(self._rows, dtype=np.int64) if self._rows else np.zeros(0, np.int64)
        return Texts(values, rows)


@dataclass(frozen=True, repr=False, eq=False)
class Cells:
    """One column, one cell per row.

    Attributes:
        numbers: float64, shape ``(n,)``; NaN where a cell holds no finite number.
        texts: the texts of the cells, empty where absent; None for numbers made of dates.
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
