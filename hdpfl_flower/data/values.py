"""Values in cells and schemas: trimmed texts, numbers, and the key by which two are the same."""

from __future__ import annotations

import math
import re
import unicodedata

NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Number in a cell: ASCII decimal notation, without nan, inf, hex, separators.

No digit can be matched in two ways, so a text that is no number is rejected in linear time.
"""
BLANK = " \t\n\r\f\v"
"""ASCII characters trimmed from cells and schema values."""
_SIGNS = str.maketrans(
    dict.fromkeys([0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
    | dict.fromkeys(map(ord, "\u200b\u2060\ufeff"))  # of no width
    | dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
    | dict.fromkeys(map(ord, "\u2018\u2019\u02bc\u00b4`"), "'")
    | dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb"), '"')
    | {ord("\u066b"): ".", ord("\u066c"): ","}  # Arabic marks of the fraction and of thousands
)
"""Unicode blanks, minus signs, quotes and marks, with the ASCII sign that a cell means by them."""
_DIGIT = re.compile(r"(?![0-9])\d")


def plain(text: str) -> str:
    """Return ``text`` trimmed, with ASCII blanks, minus signs, quotes and decimal digits.

    Linear in its length. Quotes of a printer around the whole are removed.

    >>> plain(" \u22125\u00a0"), plain("\u201cyes\u201d"), plain("2\u202f090")
    ('-5', 'yes', '2 090')
    >>> plain("\u0663\u0668\u066b\u0665")
    '38.5'
    """
    if text.isascii():
        return text.strip(BLANK)
    changed = text.translate(_SIGNS).strip(BLANK)
    changed = _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), changed)
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


def value_key(value: str) -> float | bytes:
    """Return the comparison key: a finite number, else the UTF-8 bytes.

    >>> value_key(" 1") == value_key("1.0"), value_key("1_0")
    (True, b'1_0')
    """
    text = plain(value).encode(errors="surrogatepass")
    return text if math.isnan(number := number_in(text)) else number
