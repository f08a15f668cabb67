"""CSV without spreadsheet formulas."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable

from hdpfl_flower.system.printable import printable

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""Return ``rows`` as CSV without spreadsheet formulas.

    A text that begins like a formula gets an apostrophe, the mark of text; numbers stay.

    >>> csv_text([["=cmd()", "-1.5", -2, "a"]])
    "'=cmd(),-1.5,-2,a\n"
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    begins = unicodedata.normalize("NFKC", value).lstrip()[:1]  # a full-width = counts as one
    formula = (bool(begins) and begins in "=+-@|%") or value[:1] in ("\t", "\r", "\n")
    return f"'{printable(value)}" if formula else printable(value)
