"""Rows that cannot be cut, with cause and label, only for the site's own screen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.redacted import Redacted
from hdpfl_tools.tables.sources.csv_rows import LostRows

BROKEN = "broken by a line break outside of quotes"
LONG, SHORT = "with a delimiter outside of quotes", "with too few cells"
QUOTES = "with quotes that do not pair"
NO_OBJECT = "no whole JSON object on one line"
_MOST_LINES = 10
Ints = npt.NDArray[np.int64]

_DECIMAL = re.compile(rb"-?[0-9]{1,9},[0-9]{1,4}")
"""Number of a decimal comma, cut at it and joined again."""


@dataclass(frozen=True, repr=False)
class LostRow(Redacted):
    """Row that cannot be cut.

    Attributes:
        number: of its first line, from 0.
        cells: as the delimiters alone cut it.
        missing: cells that it has less than the header, negative for more.
        why: it cannot be cut.
    """

    number: int
    cells: tuple[bytes, ...]
    missing: int
    why: str


def lost_rows(lost: LostRows | None) -> list[LostRow]:
    """Return the rows that cannot be cut.

    Lines in a row that together have the header's cells are one row, broken by a line break outside
    of quotes in a column that is not read; unless a later one begins as the first does.
    """
    rows: list[LostRow] = []
    start, read = 0, {*lost.places.values()} if lost else set()
    while lost is not None and start < len(lost.rows):
        cells, end = lost.cells[start], start + 1
        joined, why = cells, QUOTES if lost.unpaired[start] else "" if cells else NO_OBJECT
        while (
            cells
            and end < min(len(lost.rows), start + _MOST_LINES)
            and lost.rows[end] == lost.rows[end - 1] + 1
            and len(joined) + len(lost.cells[end]) - 1 <= lost.width
            and len(joined) - 1 not in read
            and max(len(joined), len(lost.cells[end])) < lost.width
            and _shape(lost.cells[end][0]) != _shape(cells[0])
        ):
            more, end = lost.cells[end], end + 1
            joined = (*joined[:-1], joined[-1] + b"\n" + more[0], *more[1:])
        if len(joined) == lost.width and end > start + 1:
            cells, why = joined, BROKEN
        else:
            end = start + 1
        missing = lost.width - len(cells)
        rows.append(
            LostRow(lost.rows[start], cells, missing, why or (SHORT if missing > 0 else LONG))
        )
        start = end
    return rows


def _shape(text: bytes) -> bytes:
    return re.sub(rb"[0-9]+", b"9", re.sub(rb"[A-Za-z\x80-\xff]+", b"a", text.strip()))


def lost_labels(
    lost: Sequence[LostRow], place: int, group_of: Callable[[Sequence[bytes]], Ints]
) -> Ints:
    """Return each lost row's label, (n,); -1 for two.

    A surplus or missing cell stands before or after the label: it is looked for at its place from
    the left and from the right.
    """
    left = [row.cells[place] if place < len(row.cells) else b"" for row in lost]
    ends = ((row.cells, place - row.missing) for row in lost)
    right = [cells[end] if 0 <= end < len(cells) else b"" for cells, end in ends]
    if not lost:
        return np.zeros(0, dtype=np.int64)
    first, last = group_of(left), group_of(right)
    short = np.array([row.missing > 0 for row in lost])
    agreed = np.where((first == last) | (last < 0), first, -1)
    return np.where((first < 0) & ~short, last, agreed)


def causes(lost: Sequence[LostRow]) -> str:
    """Return how many rows are lost for each reason."""
    return ", ".join(f"{n} {why}" for why, n in Counter(row.why for row in lost).most_common())


def one_cell_longer(lost: Sequence[LostRow]) -> str:
    """Return the fault of rows with one more cell."""
    remedy = "R writes row names like this: export the table with write.csv, or with col.names = NA"
    pairs = range(min(len(row.cells) for row in lost) - 1)
    numbered = [row.cells[0] for row in lost] == [
        b"%d" % number for number in range(1, len(lost) + 1)
    ]
    if all(not row.cells[-1].strip() for row in lost):
        remedy = "they end with a delimiter: write a delimiter at the end of the header, too"
    elif not numbered and any(
        all(_DECIMAL.fullmatch(b",".join(row.cells[left : left + 2])) for row in lost)
        for left in pairs
    ):
        remedy = (
            "a decimal comma outside quotes cuts a number in two, or R wrote row names: export "
            "the table with semicolons between the cells, or with write.csv"
        )
    return f"every record is one cell longer than the header ({len(lost)} records): {remedy}"
