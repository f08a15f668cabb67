"""Placeholders in a drafted schema, and their refusal by runs.

``hdpfl-site schema --to`` reads a site's records; a bound or a category that it wrote would be a
statistic of them, published in the terms of every run. It writes ``TO_CHOOSE`` in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hdpfl_flower.errors import DataError

TO_CHOOSE = "<choose>"
"""Placeholder for a value that a person must choose."""
_NAMED, _SHOWN = 5, 60


def placeholders(data: object, key: str = "") -> Iterator[str]:
    """Yield the key of every placeholder in parsed TOML, once each.

    A column is called by its name where that is a plain text.

    >>> [*placeholders({"columns": [{"name": "age", "bounds": ["<choose>", 90]}]})]
    ['columns.age.bounds']
    """
    if isinstance(data, dict):
        for name, value in data.items():
            # The text may be a server's, and a long name stands before each key of its table.
            shown = name[:_SHOWN] if name.isprintable() else "(a key)"
            yield from placeholders(value, f"{key}.{shown}" if key else shown)
    elif isinstance(data, list):
        if any(map(_holds, data)):
            yield key
            return
        for number, value in enumerate(data):
            name = value.get("name") if isinstance(value, dict) else None
            plain = isinstance(name, str) and name.isprintable() and TO_CHOOSE not in name
            yield from placeholders(value, f"{key}.{str(name)[:_SHOWN] if plain else number}")
    elif _holds(data):
        yield key


def _holds(value: object) -> bool:
    """Return whether ``value`` is a placeholder text or a list with one."""
    if isinstance(value, list):
        return any(map(_holds, value))
    return isinstance(value, str) and TO_CHOOSE in value


def refuse_placeholders(data: dict[str, Any]) -> None:
    """Raise ``DataError`` naming the keys of remaining placeholders."""
    keys = list(dict.fromkeys(placeholders(data)))
    if keys:
        more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
        listed = ", ".join(f"'{key}'" for key in keys[:_NAMED])
        raise DataError(
            f"schema: still to be chosen: {listed}{more}; write values from public knowledge (a "
            "guideline, a codebook), never from the records"
        )
