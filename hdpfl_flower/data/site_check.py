"""What ``hdpfl-site profile check`` says of a site's data, for the site's own eyes.

A run counts what it cannot read and trains on; nothing of a record may enter its log. Here, before
any run, the site is shown the very texts. Only commands of the site import this file
(``tests/hdpfl_flower/data/test_site_check.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hdpfl_flower.config.data_source import TABLES, DataSource
from hdpfl_flower.data.array_targets import targets_wanted
from hdpfl_flower.data.columns import Mask
from hdpfl_flower.data.own_table import OwnTable, outcomes
from hdpfl_flower.data.schema import Column, EventColumn, Label, Schema
from hdpfl_flower.data.site_data import SiteData, read_site_data
from hdpfl_flower.data.table_reader import RawTable, load_table
from hdpfl_flower.data.table_records import (
    Summary,
    encode_column,
    event_of,
    is_time,
    outcomes_of,
)
from hdpfl_flower.models.task import Task

MOST_UNREADABLE = 0.2
"""Share of a column's cells, of those that hold something, above which it is not what it says."""
MOST_CLIPPED = 0.2
"""Share of a column's numbers outside of the bounds above which its unit is doubted."""
MOST_BEYOND = 0.8
"""Share of the times beyond the last edge of survival above which their unit is doubted: long
follow-up is no mistake, days in place of months are."""
_Any = Column | Label | EventColumn
_SHOWN = 10
_LONGEST = 40


def check_site_data(
    source: DataSource, task: Task, schema_text: str, declared_records: int
) -> list[str]:
    """Return the lines of ``hdpfl-site profile check``, for the site's own eyes.

    A line that starts with ``error:`` must be corrected before a run, one with ``warning:`` should
    be looked at. Errors about cells that cannot be read show their texts; no other line shows a
    value of a record.

    Args:
        source: as for :func:`read_site_data`.
        task: as for :func:`read_site_data`.
        schema_text: as for :func:`read_site_data`.
        declared_records: the profile's constant N.

    Raises:
        DataError: as :func:`read_site_data`.
    """
    data = read_site_data(source, task, schema_text)
    summary, used = data.summary, len(data.train)
    held = f", {len(data.test)} held out for the site's own test" if data.test is not None else ""
    lines = [f"records: {summary.rows} found, {used} for training{held}"]
    lines += [f"left out: {count}, {why}" for why, count in summary.left_out.items() if count]
    about: dict[str, str] = {}
    if source.format in TABLES:
        schema = Schema.load(schema_text)
        about = dict(_about_columns(source, schema, summary))
        lines += _about_all_columns(schema, summary)
        lines += _about_mapping(source, schema)
    for column in dict.fromkeys((*summary.filled, *summary.clipped)):
        filled, clipped = summary.filled.get(column, 0), summary.clipped.get(column, 0)
        # A column that an error or a warning is about is not said to be read as well.
        if (filled or clipped) and column not in about:
            unreadable = summary.unreadable.get(column, 0)
            lines.append(
                f"column '{column}': {filled} filled ({unreadable} of them unreadable), "
                f"{clipped} clipped to the bounds"
            )
    lines += about.values()
    for reason in ("no id", "repeated id"):
        if summary.left_out.get(reason):
            lines.append(
                f"error: {summary.left_out[reason]} records have {reason}: the schema protects "
                "one record an id; give each its own id, or merge those of one unit"
            )
    lines += _about_arrays(source, summary, task)
    lines += _about_labels(data, task)
    return lines + list(_against_declared(data, declared_records))


def _about_mapping(source: DataSource, schema: Schema) -> Iterator[str]:
    """Yield a warning for each column that the profile maps and the schema does not have."""
    names = {schema.id, *(one.column for one in outcomes(schema))}
    names |= {column.name for column in schema.columns}
    for name in source.columns:
        if name not in names:
            yield f"warning: 'data.columns.{name}' is no column of the run's 'schema'"


def _about_all_columns(schema: Schema, summary: Summary) -> Iterator[str]:
    """Yield the error about a table of which no feature holds anything."""
    rows = summary.rows - summary.left_out["cannot be cut into cells"]
    if rows and all(
        summary.filled[c.name] == rows and not summary.unreadable[c.name] for c in schema.columns
    ):
        yield (
            "error: every column of the schema is missing in every record: nothing can be learned, "
            "and ε would be spent; is it the right table, and are 'missing' and the names right?"
        )


def _about_columns(
    source: DataSource, schema: Schema, summary: Summary
) -> Iterator[tuple[str, str]]:
    """Yield each column that is wrong as a whole, and what is; '' stands for lines of the file.

    The texts are read again where they are shown: a run's summary has none.
    """
    uncut = summary.left_out["cannot be cut into cells"]
    rows = summary.rows - uncut
    held = _held(summary, rows, schema.label)
    are_wrong = summary.unknown_labels > MOST_UNREADABLE * held
    wrong: list[_Any] = [*outcomes(schema)] if are_wrong else []
    yield from _about_times(schema.label, summary, 0 if are_wrong else held)
    for column in schema.columns:
        held, name = _held(summary, rows, column), column.name
        if summary.unreadable[name] > MOST_UNREADABLE * held:
            wrong.append(column)
        elif rows and not held:
            line = f"warning: column '{name}' is missing in every record: its feature is constant"
            yield name, f"{line}, and ε is spent on it all the same"
        elif summary.clipped.get(name, 0) > MOST_CLIPPED * held:
            line = (
                f"warning: column '{name}': {summary.clipped[name]} of {held} numbers lie outside"
            )
            yield (
                name,
                (
                    f"{line} the schema's bounds and are clipped; is the unit the schema's? Set "
                    f"'data.columns.{name}.factor'"
                ),
            )
    is_ragged = uncut > MOST_UNREADABLE * summary.rows
    if wrong or is_ragged:
        own = OwnTable.of(source)
        raw = load_table(source.path, source.format, own.all_wanted(schema), own.form)
        if is_ragged:
            yield "", _uncut(raw)
        for each in wrong:
            name = each.column if isinstance(each, (Label, EventColumn)) else each.name
            if line := _unreadable(each, name, raw, schema, own):
                yield name, line


def _about_times(label: Label, summary: Summary, held: int) -> Iterator[tuple[str, str]]:
    """Yield the label's column and the line about times beyond the last edge, if any are."""
    beyond = summary.clipped.get(label.column, 0) if label.edges and held else 0
    line = f"column '{label.column}': {beyond} times beyond the last edge, censored there"
    if beyond > MOST_BEYOND * held:
        line = (
            f"warning: column '{label.column}': {beyond} of {held} times lie beyond the last of "
            "the schema's edges and are censored there; is the unit the schema's? Set "
            f"'data.columns.{label.column}.factor'"
        )
    if beyond:
        yield label.column, line


def _held(summary: Summary, rows: int, column: Column | Label) -> int:
    """Return how many of the ``rows`` cells of ``column`` hold something."""
    if isinstance(column, Label):
        gone = summary.left_out["no known label"] - summary.unknown_labels
    else:
        gone = summary.filled[column.name] - summary.unreadable[column.name]
    return rows - gone


def _uncut(raw: RawTable) -> str:
    """Return the error about lines that have other cells than the header."""
    lost = np.setdiff1d(np.arange(raw.rows), raw.positions)
    listed = ", ".join(str(row + 1) for row in lost[:_SHOWN])
    return (
        f"error: {len(lost)} of {raw.rows} records have another number of cells than the header "
        f"(records {listed}{', …' if len(lost) > _SHOWN else ''}, counted from 1): quote cells "
        "that hold the delimiter, and leave no line break in a cell"
    )


def _unreadable(column: _Any, name: str, raw: RawTable, schema: Schema, own: OwnTable) -> str:
    """Return the error about a column of which too many cells cannot be read, with their texts.

    Empty for the one of survival's two columns that can be read.
    """
    summary, rows = Summary(raw.rows), len(raw.positions)
    if isinstance(column, EventColumn):
        index, missing = event_of(raw, schema, own)
        bad = (index < 0) & ~missing
    elif isinstance(column, Label) and column.edges:
        cells, missing = own.read(raw, name, column.aliases, schema.missing)
        bad = ~is_time(cells.numbers) & ~missing
    elif isinstance(column, Label):
        found = outcomes_of(raw, schema, own, summary)
        bad, missing = ~found.known & ~found.missing, found.missing
    else:
        block = np.zeros((rows, len(column.feature_names)), dtype=np.float32)
        filled, missing = encode_column(column, raw, schema, own, block, summary)
        bad = filled & ~missing
    if not bad.any():
        return ""
    texts = _texts(raw, name, column.aliases, schema.missing, own, bad)
    listed = "; ".join(f"'{text}' {count} times" for text, count in texts.most_common(_SHOWN))
    more = f"; and {len(texts) - _SHOWN} other texts" if len(texts) > _SHOWN else ""
    return (
        f"error: column '{name}': {int(bad.sum())} of {int((~missing).sum())} cells that hold "
        f"something cannot be read: {listed}{more}. Say how the site writes them: "
        f"'decimal', 'missing' or 'encoding' in [data], 'values', 'missing' or 'to' in "
        f"[data.columns.{name}]"
    )


def _texts(
    raw: RawTable,
    name: str,
    aliases: Sequence[str],
    marks: Sequence[str],
    own: OwnTable,
    bad: Mask,
) -> Counter[str]:
    """Return the texts in the rows ``bad`` of a column that kept it from being read."""
    column, how = raw.columns[own.wanted(name, aliases)], own.own(name)
    if not how.to:
        return _counted(column, bad)
    dated = np.isfinite(column.days(how.date_formats))
    found = _counted(column, bad & ~dated)
    since, _ = own.since(raw, name, len(bad), marks)
    reference = own.reference(name)
    if reference is not None:
        found += _counted(raw.columns[reference], bad & dated & ~np.isfinite(since))
    late = int((bad & dated & np.isfinite(since)).sum())
    # An age below 0, or a time to an event.
    order = "after" if how.to == "age" else "before"
    return found + Counter({f"(a date {order} 'reference')": late} if late else {})


def _counted(column: Any, rows: Mask) -> Counter[str]:
    """Return how often each text stands in ``rows`` of a column."""
    texts = column.texts()
    if texts is None:
        kind = "(a type of Parquet that is neither number nor text; dates need 'to')"
        return Counter({kind: int(rows.sum())} if rows.any() else {})
    counts = np.bincount(texts.rows[rows], minlength=len(texts.values))
    found: Counter[str] = Counter()
    for at in np.flatnonzero(counts):
        text = texts.values[at][: 4 * _LONGEST].decode(errors="replace")
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        found[shown] += int(counts[at])
    return found


def _about_arrays(source: DataSource, summary: Summary, task: Task) -> Iterator[str]:
    """Yield the error about records without a schema of which too many are none of the task's."""
    for reason, remedy in (
        ("no known label", f"'y' must hold {targets_wanted(task)}"),
        ("in no class folder", f"the subfolders must be named 0 to {task.classes - 1}"),
        ("features not finite", "'x' must hold finite numbers; fill or remove the others"),
    ):
        count = summary.left_out.get(reason, 0)
        if source.format not in TABLES and count > MOST_UNREADABLE * summary.rows:
            yield f"error: left out: {count} of {summary.rows} records, {reason}: {remedy}"


def _about_labels(data: SiteData, task: Task) -> Iterator[str]:
    """Yield what is wrong with the labels as a whole."""
    parts = [data.train] if data.test is None else [data.train, data.test]
    if not any(map(len, parts)):
        yield (
            "error: no record can be used: not one has a label of the schema; the site would send "
            "noise alone and spend its ε"
        )
    elif task.classes and len({*np.concatenate([part.targets for part in parts]).tolist()}) == 1:
        yield (
            "warning: every label is of the same class: these records alone show no difference "
            "between the classes"
        )
    elif task.intervals and not any((part.targets % 2).any() for part in parts):
        yield "warning: no event occurs in these records: they show alone that it is rare"


def _against_declared(data: SiteData, declared: int) -> Iterator[str]:
    """Yield a warning where the records for training are not about as many as declared."""
    used = len(data.train)
    if used == 0 and data.test is not None and len(data.test):
        yield "warning: no record is left for training: the site would send noise alone"
    if used > 1.1 * declared:
        yield (
            f"warning: {used} records for training, more than the {declared} declared: the budget "
            "holds, but batches are larger than 'training.batch-size' and steps longer than "
            "planned; raise 'training.declared-records' (the number is public: round it)"
        )
    elif used < 0.9 * declared:
        yield (
            f"warning: {used} records for training, fewer than the {declared} declared: batches "
            "are smaller than planned and noise weighs more; lower 'training.declared-records' "
            "(the number is public: round it)"
        )
