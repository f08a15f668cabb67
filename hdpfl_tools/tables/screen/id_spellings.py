"""Ids that may name the same unit in two spellings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from hdpfl_flower.config.redacted import Redacted

_LONGEST = 40


@dataclass(frozen=True, repr=False)
class Spellings(Redacted):
    """Distinct ids that may name the same unit.

    Attributes:
        alike: groups of two or more that differ only in spelling.
        rounded: ids in a spreadsheet's scientific notation.
    """

    alike: tuple[tuple[bytes, ...], ...]
    rounded: int


def spellings(ids: Sequence[bytes]) -> Spellings:
    """Return ids that may be equal up to zeros, case, blanks, marks.

    Blanks, dashes and the like count where they divide both ids, so 1-23 is not 12-3; where one has
    none, 123 is both.

    >>> spellings([b"007", b"A-1", b"7.0", b"A1", b"8", b'="8"', b"1-23", b"12-3"]).alike
    ((b'007', b'7.0'), (b'A-1', b'A1'), (b'8', b'="8"'))
    """
    folded = {name: _folded(name) for name in ids}
    keys = {_without_zeros(text) for text in folded.values()}
    # A rounded id matches only whole numbers that round to it.
    rounded = {key for key in keys if _ROUNDED.fullmatch(key)}
    digits = {len(key.partition("e")[0].replace(".", "")) for key in rounded}
    whole = [key for key in keys if key.isdecimal() and len(key) < _LONGEST]
    roundings = {f"{int(key):.{count - 1}e}": key for key in whole for count in digits}
    groups: dict[str, list[bytes]] = {}
    for name, text in folded.items():
        joined, key = _without_zeros(text.replace("-", "")), _without_zeros(text)
        # Joined, if an id without marks is so written.
        same = joined if joined in keys else key
        groups.setdefault(roundings.get(key, same), []).append(name)
    alike = tuple(tuple(group) for group in groups.values() if len(group) > 1)
    return Spellings(alike, sum(_without_zeros(text) in rounded for text in folded.values()))


def _folded(name: bytes) -> str:
    """Return an id without case, quotes and zero-width signs; separators become ``-``."""
    if name.isalnum():  # of ASCII alone
        return name.decode().casefold()
    try:
        text = name.decode()
    except UnicodeDecodeError:  # of another encoding than the others
        text = name.decode("latin-1")
    text = unicodedata.normalize("NFKC", re.sub("[\"'`´=]", "", text)).casefold()
    signs = []
    for sign in text:
        kind = unicodedata.category(sign)
        if kind == "Nd":
            signs.append(str(unicodedata.decimal(sign)))
        elif kind in ("Zs", "Pd", "Pc", "Ps", "Pe", "Cc") or sign in "/\\:;|#*\u2212":
            signs.append("-")
        elif kind not in ("Cf", "Pi", "Pf"):
            signs.append(sign)
    # Again: a sign of no width kept a letter from its accent.
    text = unicodedata.normalize("NFKC", re.sub("-+", "-", "".join(signs)).strip("-.,"))
    if _ROUNDED.fullmatch(text.replace(",", ".")):
        return text.replace(",", ".")
    text = re.sub("(?<=[0-9])[.,]0{1,2}$", "", text)  # 7.0, but no group of thousands
    is_grouped = re.fullmatch("[0-9]{1,3}([.,][0-9]{3})+", text)
    return re.sub("[.,]", "", text) if is_grouped else text


_ROUNDED = re.compile(r"[0-9](\.[0-9]+)?e\+[0-9]{2,3}")


def _without_zeros(text: str) -> str:
    """Return ``text`` without leading zeros of groups of digits.

    >>> _without_zeros("p007-0-10")
    'p7-0-10'
    """
    return re.sub(r"(?<![0-9.,+])0+(?=[0-9])", "", text)
