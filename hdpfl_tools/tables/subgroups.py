"""Subgroup of each record of a table, for local measures.

A column of categories has one group per category, with the schema's name; a column of numbers has
three of about the same size, cut between distinct values. The cuts depend on the records: a
group's name is as private as its measures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.columns import Texts
from hdpfl_flower.data.schema import Column, EventColumn, Label, Schema
from hdpfl_tools.tables.own_table import OwnTable, categories_of, outcomes
from hdpfl_tools.tables.sources.header import Wanted
from hdpfl_tools.tables.table_reader import RawTable, load_table

MOST = 12
"""Maximum distinct values of a number column that is not binned."""
MISSING, OTHER = "missing", "other"
"""Groups of cells without a value, and of values outside the schema."""


def read_subgroups(
    source: DataSource, schema: Schema, positions: npt.NDArray[np.int64]
) -> dict[str, list[str]]:
    """Return each column's groups, one for each of n records.

    Args:
        source: its ``subgroups`` name columns of the schema, in its units and categories, or
            else of the table.
        schema: of the run.
        positions: the row of the table of each record, shape ``(n,)``.

    Raises:
        DataError: the table cannot be read, or lacks a column.
    """
    site_table, groups = OwnTable.of(source), {}
    for name in source.subgroups:
        columns: dict[str, Column | Label | EventColumn] = {
            **{outcome.column: outcome for outcome in outcomes(schema)},
            **{feature.name: feature for feature in schema.columns},
        }
        column = columns.get(name)
        aliases = column.aliases if column else ()
        wanted = [site_table.wanted(name, aliases)]
        if column and (reference := site_table.reference(name)):
            wanted.append(reference)
        if column is None:
            wanted = [Wanted((name,), f"'{name}' ('data.subgroups')")]
        raw = load_table(*source.place, wanted, site_table.form)
        rows = np.searchsorted(raw.positions, positions)
        if column is None:
            texts = raw.columns[wanted[0]]
            marks = (*schema.missing, *site_table.missing)
            missing = raw.columns[wanted[0]].cells(site_table.form.notation).missing(marks)
            numbers = raw.columns[wanted[0]].cells(site_table.form.notation).numbers
            names = _names(texts)
            groups[name] = _groups(numbers[rows], [names[row] for row in rows], missing[rows])
            continue
        groups[name] = _of_schema(
            raw, site_table, schema, name, aliases, categories_of(column), rows
        )
    return groups


def _of_schema(
    raw: RawTable,
    site_table: OwnTable,
    schema: Schema,
    name: str,
    aliases: Sequence[str],
    categories: Sequence[Sequence[str]],
    rows: npt.NDArray[np.int64],
) -> list[str]:
    """Return the group of each of ``rows`` by a schema column."""
    marks = next((feature.missing for feature in schema.columns if feature.name == name), ())
    cells, missing = site_table.read(raw, name, aliases, (*schema.missing, *marks))
    if not categories:
        return _groups(cells.numbers[rows], [OTHER] * len(rows), missing[rows])
    texts, places = site_table.choices(name, categories)
    index = cells.lookup(texts)[rows]
    named = [categories[places[place]][0] if place >= 0 else OTHER for place in index]
    return [MISSING if gone else group for group, gone in zip(named, missing[rows], strict=True)]


def _groups(
    numbers: npt.NDArray[np.float64], texts: Sequence[str], missing: npt.NDArray[np.bool_]
) -> list[str]:
    """Return one group per value, or three by size for many numbers."""
    different = np.unique(numbers[~missing & np.isfinite(numbers)])
    if len(different) <= MOST:
        named = [f"{x:g}" if np.isfinite(x) else t for x, t in zip(numbers, texts, strict=True)]
        return [MISSING if gone else group for group, gone in zip(named, missing, strict=True)]
    first, second = np.quantile(numbers[~missing & np.isfinite(numbers)], [1 / 3, 2 / 3])
    third = np.where(numbers <= first, 0, np.where(numbers <= second, 1, 2))
    words = (f"≤ {first:g}", f"> {first:g}, ≤ {second:g}", f"> {second:g}")
    return [
        MISSING if gone else words[third_of] if np.isfinite(x) else OTHER
        for x, third_of, gone in zip(numbers, third, missing, strict=True)
    ]


def _names(texts: Texts) -> list[str]:
    """Return the text of each row, cut to 40 characters."""
    names = [text.decode(errors="replace")[:40] for text in texts.values]
    return [names[row] for row in texts.rows.tolist()]
