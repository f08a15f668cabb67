"""Members of a run with shared noise: their keys, and the sets of sites that share a round.

A run names its members as ``NAME=KEY`` between commas: a site's registered name and the fingerprint
of its key for shared noise (``hdpfl-site peers show``). A round's set is numbers of members, in
order. A simulated run names none: there a member's number is its partition's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

from hdpfl_flower.shared_noise.keys import MOST_MEMBERS

PART: Final = "sum-part"
"""Name of a masked part of a sum in a reply, uint64, shape ``(d + 1,)``."""
FINGERPRINT_BYTES: Final = 16
"""Bytes of a key's fingerprint: 128 bits exclude a second key, and people can read them aloud."""


def fingerprint_of(public_key: bytes) -> str:
    """Return the fingerprint of a key of 32 bytes: 32 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[: 2 * FINGERPRINT_BYTES]


@lru_cache(maxsize=64)
def members_of(text: str) -> dict[str, str]:
    """Return name → fingerprint of a checked list, in its order; not to be changed.

    >>> members_of("b=00112233445566778899aabbccddeeff")
    {'b': '00112233445566778899aabbccddeeff'}
    """
    return dict(entry.split("=") for entry in text.split(",") if entry)


def default_colluders(members: int) -> int:
    """Return t for so many members: ⌊(n − 1)/3⌋, and at least 1.

    >>> [default_colluders(n) for n in (3, 4, 7, 20)]
    [1, 1, 2, 6]
    """
    return max(1, (members - 1) // 3)


def write_set(numbers: Collection[int]) -> str:
    """Return a set of members as text; the order does not count."""
    return ",".join(map(str, sorted(numbers)))


def read_set(text: str) -> tuple[int, ...]:
    """Return the set of :func:`write_set`.

    Raises:
        ValueError: it is written in another form, or has too many members.
    """
    if len(text) > 5 * MOST_MEMBERS or not re.fullmatch(r"(\d{1,4})(,\d{1,4})*", text, re.ASCII):
        raise ValueError("no set of members")
    numbers = tuple(map(int, text.split(",")))
    if write_set({*numbers}) != text or max(numbers) >= MOST_MEMBERS:
        raise ValueError("no set of members")
    return numbers


def check_sharing(numbers: Sequence[int], own: int, colluders: int, least: int) -> str:
    """Return why a site must not answer a round for a set; empty: it may.

    Args:
        numbers: the round's set, each member once.
        own: the site's number.
        colluders: t, of the run.
        least: members that a set needs, by the terms or the profile.
    """
    if own not in numbers:
        return "the round's set does not hold this site"
    if len(numbers) < max(colluders + 2, least):
        return (
            "the round's set has fewer sites than 'colluders' + 2, or than the least that terms "
            "and profile allow"
        )
    return ""
