"""Tables inside of the terms, as dotted keys and plain values.

Flower writes ``[work] kind = "joint"`` as ``work.kind = "joint"``; the terms, the ledger and the
journal do the same. Here the form alone is checked, and its size, which a site reads before its
operator consents: the meaning is a kind's. Those of ``first`` and ``after``
(``hdpfl_flower/releases/``) a site's version may not have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hdpfl_flower.config.settings import Value

TABLES = ("backbone", "task", "spend", "work", "second", "choice", "first", "after")
"""Tables of the terms: a ``kind`` and its settings; ``first`` and ``after`` have a table a kind."""
OPEN: Final = "auto"
"""Value of a setting that is left out: Flower's run config holds every setting of every kind."""
Pairs = tuple[tuple[str, Value], ...]
"""Dotted key without the table's own name, and value; in order, hashable."""
MOST_PAIRS, MOST_TEXT = 100, 500
"""Settings of a table, and characters of one's text. They are read before consent."""
_DEEPEST = 2
"""Tables in each other: ``first`` or ``after``, and its kind."""
_WORD = r"[a-z][a-z0-9-]{0,40}"
_SETTING, _DOTTED = re.compile(_WORD), re.compile(rf"{_WORD}\.{_WORD}")


def flattened(tables: Mapping[str, Any], deepest: int = _DEEPEST) -> Iterator[tuple[str, Any]]:
    """Yield the keys as Flower names them, with dotted tables; an empty table stays.

    >>> dict(flattened({"rounds": 3, "work": {"kind": "joint"}}))
    {'rounds': 3, 'work.kind': 'joint'}
    """
    for key, value in tables.items():
        if deepest and value and isinstance(value, Mapping):
            inner = flattened(value, deepest - 1)
            yield from ((f"{key}.{name}", setting) for name, setting in inner)
        else:
            yield key, value


def gathered(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``data`` with the settings of each table of the terms under its name.

    >>> gathered({"rounds": 3, "after.tuning.steps": 4, "fedavg": {"weights": "uniform"}})
    {'after': {'tuning.steps': 4}, 'rounds': 3, 'fedavg.weights': 'uniform'}
    """
    flat, tables = dict[str, Any](), dict[str, dict[str, Any]]()
    for key, value in flattened(data):
        name, dot, setting = key.partition(".")
        if dot and name in TABLES:
            tables.setdefault(name, {})[setting] = value
        else:
            flat[key] = value
    return {**tables, **flat}  # a value in place of a table is refused with its remedy


def read_table(value: object, key: str) -> dict[str, Value]:
    """Return the settings of table ``key``, without those that are left open.

    Raises:
        ValueError: the form is another; no value is in the text.

    >>> read_table({"kind": "joint", "stays": "auto"}, "work")
    {'kind': 'joint'}
    """
    if not isinstance(value, Mapping):
        raise ValueError(
            f"is a table: write [{key}] with a line 'kind = …' and one a setting; on a command "
            f"line {key}.kind=… and {key}.SETTING=…"
        )
    return {name: setting for name, setting in _checked(value, _SETTING, key) if setting != OPEN}


def read_pairs(value: object, table: str = "after") -> Pairs:
    """Return the sorted settings of the tables in ``first`` or ``after``.

    Raises:
        ValueError: the form is another; no value is in the text.

    >>> read_pairs({"tuning.steps": 40, "prior.share": 0.25})
    (('prior.share', 0.25), ('tuning.steps', 40))
    """
    if isinstance(value, tuple):
        value = dict(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"must be tables, written [{table}.KIND]")
    return tuple(sorted(_checked(value, _DOTTED, table)))


def _checked(
    settings: Mapping[Any, Any], form: re.Pattern[str], table: str
) -> Iterator[tuple[str, Value]]:
    if len(settings) > MOST_PAIRS:
        raise ValueError(f"has more than {MOST_PAIRS} settings")
    for key, value in settings.items():
        # The key is a server's text, and an error shows it: only in this form.
        if not isinstance(key, str) or not form.fullmatch(key):
            header = f"[{table}.KIND]" if form is _DOTTED else f"[{table}]"
            raise ValueError(f"has a key in another form than a setting of {header}")
        if not _is_plain(value):
            raise ValueError(
                f"'{table}.{key}' must be a finite number, true, false or a line of at most "
                f"{MOST_TEXT} printable characters"
            )
        yield key, value


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
