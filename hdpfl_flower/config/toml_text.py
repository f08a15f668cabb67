"""Form of a TOML text, checked first (long keys parse quadratically), and values as TOML."""

from __future__ import annotations

import json
import re

BOM = "\ufeff"
"""Mark that some editors set before a text. Not the codec utf-8-sig: a message would import it."""

DEEPEST, MOST_PARTS = 4, 3
"""Brackets in each other, and names with dots between in one key, of terms and schemas."""

_TOKEN = re.compile(
    r"""(?xs)
    \"{3} (?: [^"\\]++ | \\. | "(?!"") )*+ (?: "{3,5} | \\?\Z )
    | '{3} (?: [^']++ | '(?!'') )*+ (?: '{3,5} | \Z )
    | " (?: [^"\\\n]++ | \\[^\n] )*+ "?
    | ' [^'\n]*+ '?
    | \# [^\n]*+
    | [][{}.,=\n]
    """
)
"""Texts, possibly unfinished, comments and marks of TOML, without backtracking."""


def as_toml(value: object) -> str:
    """Return a text, number or truth value as TOML writes it.

    >>> as_toml("Ward 7"), as_toml(True)
    ('"Ward 7"', 'true')
    """
    # JSON's escapes are TOML's, but for halves of a character; and TOML refuses a bare DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def form_fault(text: str, *, most_parts: int = MOST_PARTS) -> str:
    """Return the fault of a TOML text's brackets and keys; empty for none.

    Args:
        text: whether or not it is TOML; its size is bounded by the caller.
        most_parts: names with dots between in one key.

    >>> form_fault("a.b = [[1]]"), form_fault("[a.b.c.d]")
    ('', 'a key has more than 3 parts; use fewer dots')
    """
    depth = dots = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark == ".":
            dots += 1
        elif mark in "[]{},=\n":
            depth += (mark in "[{") - (mark in "]}")
            dots = 0
        if depth > DEEPEST:
            return f"more than {DEEPEST} brackets are nested; close some"
        if dots >= most_parts:
            return f"a key has more than {most_parts} parts; use fewer dots"
    return ""
