"""Keys of a run config as rows for ``pyproject.toml`` and docs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from hdpfl_flower.config.run_config import GROUPS
from hdpfl_flower.config.settings import Settings, Value
from hdpfl_flower.releases import KINDS
from hdpfl_flower.work import Work
from hdpfl_flower.work.choice import Choice
from hdpfl_flower.work.second import SecondModel
from hdpfl_flower.work.spend import Spend

TITLES = {
    "terms": "Terms: sent to every site",
    "server": "Server: read by the server alone",
    "simulation": "Simulation: what simulated sites are drawn from",
}
"""The head of each group of flat keys."""
_TEXTS = (str, Work, SecondModel | None, Choice | None, Spend)
"""Types that users write as a text."""


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
        if (group, key) == ("terms", "after"):
            continue  # tables of their own: :func:`release_rows`
        field = settings.model_fields[name]
        described, extra = field.description or "", field.json_schema_extra
        default: Any = extra["default"] if isinstance(extra, dict) else defaults[key]
        yield Row(group, f"{prefix}{key}", default, _type_of(field.annotation), described)


def flat_rows() -> list[Row]:
    """Return a row for each key that stands outside of any table."""
    return [row for name, group in GROUPS.items() for row in rows_of(name, group)]


def release_rows() -> list[Row]:
    """Return a row for each setting of each kind of release, in its table."""
    tables = [(f"after.{name}", kind) for name, kind in KINDS.items()]
    return [row for name, kind in tables for row in rows_of(name, kind, f"{name}.")]


def _type_of(annotation: Any) -> str:
    words = {bool: "true or false", int: "whole number", float: "number"}
    if annotation in _TEXTS:
        return "text"
    if annotation in words:
        return words[annotation]
    if get_origin(annotation) is Literal:
        return " | ".join(f'"{choice}"' for choice in get_args(annotation))
    return " or ".join(_type_of(choice) for choice in get_args(annotation))
