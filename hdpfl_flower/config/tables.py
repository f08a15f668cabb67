"""Keys of a run config as rows for ``pyproject.toml`` and docs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

from hdpfl_flower.config.kind import Kind
from hdpfl_flower.config.run_config import GROUPS
from hdpfl_flower.config.settings import Settings, Value
from hdpfl_flower.config.tables_of_terms import OPEN, TABLES
from hdpfl_flower.config.tasks import TASKS
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.releases import KINDS as RELEASES
from hdpfl_flower.work import KINDS as WORKS
from hdpfl_flower.work.backbone import BACKBONES
from hdpfl_flower.work.choice import CHOICES
from hdpfl_flower.work.second import SECONDS
from hdpfl_flower.work.spend import SPENDS

TITLES = {
    "terms": "Terms: sent to every site",
    "server": "Server: read only by the server",
    "simulation": "Simulation: what simulated sites are drawn from",
}
"""The head of each group of flat keys."""
KINDS: Mapping[str, Mapping[str, type[Kind]]] = {
    "backbone": BACKBONES,
    "task": TASKS,
    "spend": SPENDS,
    "work": WORKS,
    "second": SECONDS,
    "choice": CHOICES,
}
"""Table of the terms → its kinds by name."""


@dataclass(frozen=True)
class Row:
    """One key.

    Attributes:
        group: ``terms``, ``server``, ``simulation``, or the strategy of the setting.
        key: as users write it, with the strategy's name before it where it is a setting.
        default: value of an empty run config.
        type: in words.
        description: in one line.
    """

    group: str
    key: str
    default: Value
    type: str
    description: str

    @property
    def toml(self) -> str:
        """The default as TOML and JSON write it."""
        return json.dumps(self.default, ensure_ascii=False)


def rows_of(group: str, settings: type[Settings], prefix: str = "") -> Iterator[Row]:
    """Yield a row a key of ``settings``, in the order of its class."""
    defaults = settings().as_config()
    for key, name in settings.names().items():
        if group == "terms" and key in TABLES:
            continue  # :func:`table_rows`
        field = settings.model_fields[name]
        described, extra = field.description or "", field.json_schema_extra
        default: Any = extra["default"] if isinstance(extra, dict) else defaults[key]
        yield Row(group, f"{prefix}{key}", default, _type_of(field.annotation), described)


def flat_rows() -> list[Row]:
    """Return a row for each key that stands outside of any table."""
    return [row for name, group in GROUPS.items() for row in rows_of(name, group)]


def table_rows() -> list[Row]:
    """Return a row for each setting of each kind, in its table of the terms."""
    tables = [(f"{kind.table}.{name}", kind) for name, kind in RELEASES.items()]
    return [
        *(row for name, kinds in KINDS.items() for row in _kind_rows(name, kinds)),
        *(row for name, kind in tables for row in rows_of(name, kind, f"{name}.")),
    ]


def _kind_rows(table: str, kinds: Mapping[str, type[Kind]]) -> Iterator[Row]:
    """Yield the kind, and the settings of all kinds once each, left open."""
    names = " | ".join(f'"{name}"' for name in kinds)
    default = RunTerms().as_config().get(f"{table}.kind", OPEN)
    yield Row(
        table,
        f"{table}.kind",
        default,
        names,
        "Kind of this table. auto means that the strategy decides, and may mean none.",
    )
    rows = (row for kind in kinds.values() for row in rows_of(table, kind, f"{table}."))
    yield from {row.key: replace(row, default=OPEN) for row in rows}.values()


def _type_of(annotation: Any) -> str:
    names = {str: "text", bool: "true or false", int: "whole number", float: "number"}
    if annotation in names:
        return names[annotation]
    if get_origin(annotation) is Literal:
        return " | ".join(f'"{choice}"' for choice in get_args(annotation))
    return " or ".join(_type_of(choice) for choice in get_args(annotation))
