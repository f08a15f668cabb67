"""Notation of a table's numbers, found or left to the site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.data.columns import PLAIN, Notation, Texts
from hdpfl_tools.tables.sources.header import NOTATIONS


def notation_of(columns: Sequence[Texts]) -> tuple[Notation, str]:
    """Return the notation that reads most numbers, and a note on ambiguity.

    Of two that read the same cells as other numbers (``2,090``) none is taken: the site chooses.

    Args:
        columns: of one table.
    """

    def read_by(notation: Notation) -> list[np.ndarray]:
        return [column.numbers(notation) for column in columns]

    counts = {
        notation: sum(int(np.isfinite(numbers).sum()) for numbers in read_by(notation))
        for notation in NOTATIONS
    }
    most = max(counts.values())
    best = [notation for notation, count in counts.items() if count == most]
    first = read_by(best[0])
    for other in best[1:]:
        for column, ours, theirs in zip(columns, first, read_by(other), strict=True):
            rows = np.flatnonzero(np.isfinite(ours) & (ours != theirs) & np.isfinite(theirs))
            if len(rows):
                row = rows[0]
                text = column.values[column.rows[row]].decode(errors="replace")
                return PLAIN, (
                    f"ambiguous numbers: '{text}' is {ours[row]:g} or {theirs[row]:g}; choose "
                    f"{_keys_of(other)}, where three digits stand after each mark, or "
                    f"{_keys_of(best[0])}"
                )
    return best[0], ""


def _keys_of(notation: Notation) -> str:
    keys = [f"decimal = {as_toml(notation.decimal)}"] if notation.decimal != "." else []
    keys += [f"thousands = {as_toml(notation.thousands)}"] if notation.thousands else []
    return ", ".join(keys) or 'decimal = "."'
