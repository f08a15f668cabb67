"""Local work as one value of a closed union."""

from __future__ import annotations

from typing import Final

from hdpfl_flower.config.kind import read_kind
from hdpfl_flower.config.tables_of_terms import read_table
from hdpfl_flower.config.validation import hint
from hdpfl_flower.work.base import Auto, Plain, Work
from hdpfl_flower.work.offset import Offset
from hdpfl_flower.work.parted import Alternate, Frozen, Joint

__all__ = [
    "KINDS",
    "Alternate",
    "Auto",
    "Frozen",
    "Joint",
    "Offset",
    "Plain",
    "Work",
    "read_work",
]

KINDS: Final[dict[str, type[Work]]] = {
    kind.kind: kind for kind in (Plain, Joint, Alternate, Frozen, Offset)
}
"""Every kind of local work by its name."""


def read_work(value: object) -> Work:
    """Return the work of a table: a kind and its settings.

    Settings without a kind are of the strategy's own.

    Raises:
        ValueError: no kind or setting has that name, or a value is wrong; no value is in it.

    >>> read_work({"kind": "alternate", "own-steps": 2}).own_steps
    2
    """
    if isinstance(value, Work):
        return value
    table = read_table(value, Work.key)
    if "kind" in table or not table:
        return read_kind(KINDS, table) or Auto()
    keys = {f"work.{key}" for kind in KINDS.values() for key in kind.names()}
    wrong = next((key for key in table if f"work.{key}" not in keys), None)
    if wrong is not None:
        raise ValueError(f"has a setting that no kind has{hint(f'work.{wrong}', keys)}")
    return Auto(changes=tuple(table.items()))
