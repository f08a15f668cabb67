"""Encoding of a site's CSV or Parquet file by the public schema.

No single record can make this code raise: a cell that is missing, unreadable or out of bounds is
filled or clipped, and a record without a usable label is left out; both are counted, for the site
alone. Only a fault of the file as a whole raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.data.array_targets import targets_of_times
from hdpfl_flower.data.columns import Cells, Mask
from hdpfl_flower.data.schema import CategoryColumn, Column, NumberColumn, Schema
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.sources.header import Wanted
from hdpfl_tools.tables.table_reader import RawTable, load_table


@dataclass(frozen=True, repr=False)
class Summary(Redacted):
    """Private summary of a site's data, never sent.

    Attributes:
        rows: records in the file, a bad one included.
        left_out: records left out, by reason.
        filled: cells filled because they were missing or unreadable, by column.
        unreadable: those of the filled cells that hold something, but no value of the schema.
        clipped: numbers moved to the bounds, by column; times beyond the last edge.
        unknown_labels: labels that hold something, but no value of the schema.
        withdrawn: units left out as withdrawn; nothing else here counts their records.
    """

    rows: int
    left_out: dict[str, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    clipped: dict[str, int] = field(default_factory=dict)
    unknown_labels: int = 0
    withdrawn: int = 0


@dataclass(frozen=True, repr=False, eq=False)
class TableRead(Redacted):
    """Table as read.

    Attributes:
        records: features float32 ``(n, d)``; targets int64 classes or of survival, or float32 in
            [0, 1].
        summary: the private counts.
        ids: the protected unit of each record, all different unless every record was asked for;
            None without ``id`` in the schema.
        positions: int64 ``(n,)``; the row of the file, from 0 and without
            blank lines, of each record.
        ranks: of each among the records of its unit, from 0, in the order in which training may
            use them, int64 ``(n,)``; 0 without ids.
        digests: uint64 ``(n,)``, of the row of each record as it lies in the file; None unless
            asked for.
    """

    records: Records
    summary: Summary
    ids: tuple[bytes, ...] | None
    positions: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64] | None = None


AS_THE_SCHEMA_SAYS = OwnTable()
MOST_ENCODED = 2**30
"""Bytes of a table's encoded features; 1,000,000 records of 268 numbers."""
EARLY = "censored in the first half of the first interval"


def read_table(
    path: Path,
    file_format: str,
    schema: Schema,
    site_table: OwnTable = AS_THE_SCHEMA_SAYS,
    *,
    every_record: bool = False,
    digests: bool = False,
) -> TableRead:
    """Return the records in the file at ``path``.

    Args:
        path: the file.
        file_format: as ``open_rows`` takes it.
        schema: the run's public schema.
        site_table: form of the site's table.
        every_record: all labelled records of a unit, not one alone; ``ids`` then repeat.
            For tests that stay at the site, and for a training that makes one record of them.
        digests: whether rows are digested, too; a digest depends on no schema.

    Raises:
        DataError: the file is missing, of another kind, or lacks a column of the schema; or
            ``site_table`` contradicts the schema.

    Guarantees:
        No content of a record raises, and no record changes the result of another one: of
        a CSV written as RFC 4180 says, with any content of cells; of lines with an even number of
        quotes each, also where any one of them is of other bytes. With
        an ``id`` column the same holds for units: each has at most one record, its first with a
        label, or its last by a date of the site's table; records without an id are left out.
    """
    site_table.check(schema)
    raw = load_rows(
        path, file_format, site_table.all_wanted(schema), schema, site_table, digests=digests
    )
    return records_of(raw, schema, site_table, every_record=every_record)


def load_rows(
    path: Path,
    file_format: str,
    wanted: Sequence[Wanted],
    schema: Schema,
    site_table: OwnTable,
    *,
    digests: bool = False,
    lost: bool = False,
) -> RawTable:
    """Return columns ``wanted``, that of the unit among them, without withdrawn units.

    Arguments and errors as of ``table_reader.load_table``.

    Guarantees:
        But for ``positions``, the table is that of an export without the rows of these units.
    """
    raw = load_table(path, file_format, wanted, site_table.form, digests=digests, lost=lost)
    if not (schema.id and site_table.withdrawn.digests):
        return raw
    ids = ids_of(raw, schema, site_table)
    rows = np.array(site_table.withdrawn.rest(ids), dtype=np.int64)
    return replace(
        raw,
        columns={name: column.take(rows) for name, column in raw.columns.items()},
        positions=raw.positions[rows],
        rows=raw.rows - len(ids) + len(rows),
        digests=None if raw.digests is None else raw.digests[rows],
        withdrawn=len({*ids} - {ids[row] for row in rows}),
    )


def records_of(
    raw: RawTable, schema: Schema, site_table: OwnTable, *, every_record: bool = False
) -> TableRead:
    """Return the records of columns already read; see :func:`read_table`."""
    features, summary, missing = _encode(raw, schema, site_table)
    outcomes = outcomes_of(raw, schema, site_table, summary)
    targets, labelled = outcomes.targets, outcomes.known & ~outcomes.early
    summary = replace(summary, unknown_labels=int((~outcomes.known & ~outcomes.missing).sum()))
    summary.left_out["no known label"] = int((~outcomes.known).sum())
    if schema.label.edges:
        summary.left_out[EARLY] = int(outcomes.early.sum())
    used, ranks, ids = labelled, np.zeros(len(labelled), dtype=np.int64), None
    if schema.id:
        names = ids_of(raw, schema, site_table)
        order = np.flatnonzero(labelled)
        if site_table.last_by:
            order = order[::-1]
            order = order[np.argsort(-site_table.row_days(raw)[order], kind="stable")]
        ranks = ranks_of(names, order.tolist())
        used = ranks >= 0 if every_record else ranks == 0
        summary.left_out["repeated id"] = int((ranks >= site_table.per_unit).sum())
        summary.left_out["no id"] = len(order) - int((ranks >= 0).sum())
        ids = tuple(names[row] for row in np.flatnonzero(used))
    records = Records(features[used], targets[used], missing[used])
    digests = None if raw.digests is None else raw.digests[used]
    return TableRead(records, summary, ids, raw.positions[used], ranks[used], digests)


def features_only(
    path: Path, file_format: str, schema: Schema, site_table: OwnTable = AS_THE_SCHEMA_SAYS
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], Summary, list[list[str]]]:
    """Return the features of an unlabelled table, for prediction; no label or id is needed.

    Returns:
        features float32 ``(n, d)``; int64 ``(n,)``, the row of the file of each,
        from 0 and without blank lines: a line that cannot be cut into its cells has no features;
        the private counts; and of each row its cells that were filled because they are missing or
        unknown, or were clipped, in words.

    Raises:
        DataError: as :func:`read_table`.
    """
    site_table.check(schema)
    wanted = site_table.all_wanted(schema, label=False, unit=False)
    raw = load_table(path, file_format, wanted, site_table.form)
    changed: list[list[str]] = [[] for _ in raw.positions]
    features, summary, _ = _encode(raw, schema, site_table, changed)
    return features, raw.positions, summary, changed


def check_width(schema: Schema, declared_records: int) -> None:
    """Refuse a schema whose features of the declared records take too much memory.

    The declared number is public: by the true one, a server that chooses the schema's width would
    learn it from the refusals.

    Raises:
        DataError: they take more than ``MOST_ENCODED`` bytes.
    """
    if declared_records * schema.width * 4 > MOST_ENCODED:
        raise DataError(
            "the declared records, encoded by the run's 'schema', would take more than "
            f"{MOST_ENCODED >> 30} GiB: each category takes a number in each record; ask the "
            "coordinator for fewer categories (groups, such as the chapters of the ICD), or for "
            "fewer columns"
        )


def _encode(
    raw: RawTable, schema: Schema, site_table: OwnTable, changed: list[list[str]] | None = None
) -> tuple[npt.NDArray[np.float32], Summary, npt.NDArray[np.uint8]]:
    """Return features (n, d) of all rows, counts, and filled cells by column; name changed ones."""
    rows = len(raw.positions)
    summary = Summary(raw.rows, {"cannot be cut into cells": raw.rows - rows})
    summary = replace(summary, withdrawn=raw.withdrawn)
    features = np.zeros((rows, schema.width), dtype=np.float32)
    flags, start = np.zeros((rows, len(schema.columns)), np.uint8), 0
    for number, column in enumerate(schema.columns):
        block = features[:, start : start + len(column.feature_names)]
        start += block.shape[1]
        filled, missing, clipped = encode_column(column, raw, schema, site_table, block)
        flags[:, number], unknown = filled, filled & ~missing
        summary.filled[column.name] = int(filled.sum())
        summary.unreadable[column.name] = int(unknown.sum())
        if isinstance(column, NumberColumn):
            summary.clipped[column.name] = int(clipped.sum())
        if changed is not None:
            words = (("filled", missing), ("unknown", unknown), ("clipped", clipped))
            for word, mask in words:
                for row in np.flatnonzero(mask):
                    changed[row].append(f"{column.name} {word}")
    return features, summary, flags


def encode_column(
    column: Column,
    raw: RawTable,
    schema: Schema,
    site_table: OwnTable,
    block: npt.NDArray[np.float32],
) -> tuple[Mask, Mask, Mask]:
    """Write the features of ``column`` to the zeroed ``block`` (n, width).

    Returns:
        which rows were filled, shape ``(n,)``, which of them because they are missing (the
        others could not be read), and which rows were clipped.
    """
    marks = (*schema.missing, *column.missing)
    cells, missing = site_table.read(raw, column.name, column.aliases, marks)
    if isinstance(column, NumberColumn):
        filled, clipped = _encode_number(column, cells, missing, block, schema.gain)
        return filled, missing, clipped
    filled = _encode_category(column, cells, missing, site_table, block)
    return filled, missing, np.zeros_like(missing)


def _encode_number(
    column: NumberColumn, cells: Cells, missing: Mask, out: npt.NDArray[np.float32], gain: float
) -> tuple[Mask, Mask]:
    """Write scaled numbers to ``out`` (n, 1); return filled and clipped rows."""
    filled = missing | np.isnan(cells.numbers)
    values = np.where(filled, column.fill_value, cells.numbers)
    # Scaled to public bounds and clipped: no cell makes a feature larger than they allow.
    low, high = column.bounds
    out[:, 0] = column.scale(values, gain)
    return filled, (values < low) | (values > high)


def _encode_category(
    column: CategoryColumn,
    cells: Cells,
    missing: Mask,
    site_table: OwnTable,
    out: npt.NDArray[np.float32],
) -> Mask:
    """Write ones to the zeroed ``out`` (n, categories); return filled rows."""
    texts, places = site_table.choices(column.name, column.categories)
    places_in = cells.lookup(texts)
    filled = missing | (places_in < 0)
    # An index of −1 takes some category, and the mask replaces it.
    index = np.where(filled, column.fill_index, places[places_in])
    rows = np.flatnonzero(index >= 0)
    out[rows, index[rows]] = 1
    return filled


@dataclass(frozen=True, repr=False, eq=False)
class Outcomes(Redacted):
    """Label of each row of a table.

    Attributes:
        targets: as ``Records`` has them, shape ``(n,)``; arbitrary where not known.
        known: bool, shape ``(n,)``.
        missing: unknown labels that are empty; the others cannot be read.
        early: known labels censored too early to give a target.
    """

    targets: npt.NDArray[Any]
    known: Mask
    missing: Mask
    early: Mask


def outcomes_of(raw: RawTable, schema: Schema, site_table: OwnTable, summary: Summary) -> Outcomes:
    """Return the outcomes of all rows; ``summary`` counts clipped ones."""
    label = schema.label
    cells, missing = site_table.read(raw, label.column, label.aliases, schema.missing)
    none = np.zeros(len(missing), dtype=bool)
    if label.event is not None:
        index, no_event = event_of(raw, schema, site_table)
        timed, missing = is_time(cells.numbers) & ~missing, missing | no_event
        valid = timed & (index >= 0) & ~no_event
        times = np.where(valid, cells.numbers, 0.0)
        summary.clipped[label.column] = int((times > label.edges[-1]).sum())
        targets, counts = targets_of_times(times, index == 1, label.edges)
        return Outcomes(targets, valid, missing, valid & ~counts)
    if label.bounds is not None:
        valid = ~(missing | np.isnan(cells.numbers))
        values = np.where(valid, cells.numbers, label.bounds[0])
        outside = (values < label.bounds[0]) | (values > label.bounds[1])
        summary.clipped[label.column] = int(outside.sum())
        return Outcomes(label.scale(values), valid, missing, none)
    texts, classes = site_table.choices(label.column, label.classes)
    index = cells.lookup(texts)
    # An index of −1 takes some class, and the mask leaves the record out.
    return Outcomes(classes[index], ~missing & (index >= 0), missing, none)


def is_time(numbers: npt.NDArray[np.float64]) -> Mask:
    """Return a mask of valid event times (n,): not NaN, not negative."""
    with np.errstate(invalid="ignore"):
        valid: Mask = numbers >= 0
    return valid


def event_of(
    raw: RawTable, schema: Schema, site_table: OwnTable
) -> tuple[npt.NDArray[np.int64], Mask]:
    """Return 1 for event, 0 for none, −1 for other, and missing rows."""
    event = schema.label.event
    if event is None:
        raise ValueError("the schema's label is not a time")
    cells, missing = site_table.read(raw, event.column, event.aliases, schema.missing)
    texts, groups = site_table.choices(event.column, event.groups)
    index = cells.lookup(texts)
    return np.where(index >= 0, groups[index], -1), missing


def ids_of(raw: RawTable, schema: Schema, site_table: OwnTable) -> list[bytes]:
    """Return the id of each row, empty where missing."""
    texts = raw.columns[site_table.wanted(schema.id)]
    _, missing = site_table.read(raw, schema.id, (), schema.missing)
    ids = texts.ids(site_table.form.notation)
    return [b"" if gone else text for text, gone in zip(ids, missing, strict=True)]


def ranks_of(ids: Sequence[bytes], order: Iterable[int]) -> npt.NDArray[np.int64]:
    """Return the rank of each row in ``order`` among those of its id; −1 for others.

    Two records of one patient in training would cost the patient twice the ledger's ε, and to stop
    with an error would disclose a record, so all but the first are left out, or made one record
    with it. A rank depends on the rows of its own unit alone.

    >>> ranks_of([b"p", b"q", b"p", b"", b"p"], [0, 1, 2, 3]).tolist()
    [0, 0, 1, -1, -1]
    """
    ranks = np.full(len(ids), -1, dtype=np.int64)
    seen: Counter[bytes] = Counter()
    for row in order:
        if ids[row]:
            ranks[row] = seen[ids[row]]
            seen[ids[row]] += 1
    return ranks
