"""Tables inside of the terms as sorted pairs of a dotted key and a plain value.

Flower writes ``[after.tuning] steps = 40`` as ``after.tuning.steps = 40``; the terms, the ledger
and the journal do the same. Here the form alone is checked: the meaning is a kind's
(``hdpfl_flower/releases/``), which a site's version may not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hdpfl_flower.config.settings import Value

Pairs = tuple[tuple[str, Value], ...]
"""Dotted key without the table's own name, and value; in order, hashable."""
MOST_PAIRS, MOST_TEXT = 100, 500
"""Settings of all tables together, and characters of one's text. They are read before consent."""
_KEY = re.compile(r"[a-z][a-z0-9-]{0,40}\.[a-z][a-z0-9-]{0,40}")


def read_pairs(value: object) -> Pairs:
    """Return the pairs of nested or dotted tables.

    Raises:
        ValueError: the form is another; no value is in the text.

    >>> read_pairs({"tuning": {"steps": 40}, "prior.share": 0.25})
    (('prior.share', 0.25), ('tuning.steps', 40))
    """
    if isinstance(value, tuple):
        value = dict(value)
    if not isinstance(value, Mapping):
        raise ValueError("must be tables, written [name.kind]")
    pairs = dict[str, Value]()
    for key, setting in _flat(value):
        if key in pairs:
            raise ValueError(f"has '{key}' twice; leave one out")
        pairs[key] = setting
    if len(pairs) > MOST_PAIRS:
        raise ValueError(f"has more than {MOST_PAIRS} settings")
    return tuple(sorted(pairs.items()))


def _flat(tables: Mapping[Any, Any]) -> Iterator[tuple[str, Value]]:
    for name, table in tables.items():
        named = table.items() if isinstance(table, Mapping) else [("", table)]
        for key, setting in named:
            dotted = f"{name}.{key}" if isinstance(table, Mapping) else name
            # The key is a server's text, and an error shows it: only in this form.
            if not isinstance(dotted, str) or not _KEY.fullmatch(dotted):
                raise ValueError("must be tables of settings, written [name.kind]")
            if not _is_plain(setting):
                raise ValueError(
                    f"'{dotted}' must be a finite number, true, false or a line of at most "
                    f"{MOST_TEXT} printable characters"
                )
            yield dotted, setting


def _is_plain(value: object) -> bool:
    """Return whether a value is one of Flower's, bounded and printable."""
    match value:
        case bool():
            return True
        case int():
            return abs(value) < 2**63
        case float():
            return math.isfinite(value)
        case str():
            return len(value) <= MOST_TEXT and value.isprintable()
    return False


def tables_of(pairs: Pairs) -> dict[str, dict[str, Value]]:
    """Return the settings of each kind, by its name."""
    tables: dict[str, dict[str, Value]] = {}
    for dotted, value in pairs:
        kind, _, key = dotted.partition(".")
        tables.setdefault(kind, {})[key] = value
    return tables


def gathered(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return ``data`` with the dotted keys of table ``name`` under that name.

    >>> gathered({"rounds": 3, "after.tuning.steps": 4}, "after")
    {'rounds': 3, 'after': {'tuning.steps': 4}}
    """
    head = f"{name}."
    rest = {key: value for key, value in data.items() if not key.startswith(head)}
    inner = {key[len(head) :]: value for key, value in data.items() if key.startswith(head)}
    if not inner:
        return rest
    tables = rest.get(name, {})
    if not isinstance(tables, Mapping):
        return rest  # the form is checked with the others
    return {**rest, name: {**tables, **inner}}
