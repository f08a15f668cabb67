"""What a drafted schema leaves to be chosen, and why no run accepts it as it is.

``hdpfl-site schema draft`` reads a site's records; a bound or a category that it wrote would be a
statistic of them, published in the terms of every run. It writes ``TO_CHOOSE`` in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hdpfl_flower.errors import DataError

TO_CHOOSE = "<choose>"
"""The text that stands where a person must choose a value."""
_NAMED = 5


def placeholders(data: object, key: str = "") -> Iterator[str]:
    """Yield the key of every value of parsed TOML that holds ``TO_CHOOSE``, a key once.

    A column is called by its name where that is a plain text.

    >>> [*placeholders({"columns": [{"name": "age", "bounds": ["<choose>", 90]}]})]
    ['columns.age.bounds']
    """
    if isinstance(data, dict):
        for name, value in data.items():
            shown = name if str(name).isprintable() else "(a key)"  # the text may be a server's
            yield from placeholders(value, f"{key}.{shown}" if key else str(shown))
    elif isinstance(data, list):
        if any(map(_holds, data)):
            yield key
            return
        for number, value in enumerate(data):
            name = value.get("name") if isinstance(value, dict) else None
            plain = isinstance(name, str) and name.isprintable() and TO_CHOOSE not in name
            yield from placeholders(value, f"{key}.{name if plain else number}")
    elif _holds(data):
        yield key


def _holds(value: object) -> bool:
    """Return whether ``value`` is a text with the mark in it, or a list of such texts."""
    if isinstance(value, list):
        return any(map(_holds, value))
    return isinstance(value, str) and TO_CHOOSE in value


def refuse_placeholders(data: dict[str, Any]) -> None:
    """Raise ``DataError`` where a value of a drafted schema was not chosen; it names the keys."""
    found = list(dict.fromkeys(placeholders(data)))
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        listed = ", ".join(f"'{key}'" for key in found[:_NAMED])
        raise DataError(
            f"schema: still to be chosen: {listed}{more}; write values from public knowledge (a "
            "guideline, a codebook), never from the records"
        )
