"""Messages of ``hdpfl-site profile check`` about a site's data.

A run only counts unreadable records; no content of a record may enter its log. Here, before any
run, the site is shown the texts themselves. Only commands of the site import this file
(``tests/hdpfl_tools/tables/test_site_check.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import TABLES, DataSource
from hdpfl_flower.data.array_targets import targets_wanted
from hdpfl_flower.data.columns import Mask
from hdpfl_flower.data.schema import Label, NumberColumn, Schema
from hdpfl_flower.models.task import Task
from hdpfl_tools.tables.own_table import OwnTable, by_length, outcomes, unit_in
from hdpfl_tools.tables.screen.cell_forms import in_words
from hdpfl_tools.tables.screen.id_spellings import spellings
from hdpfl_tools.tables.screen.images import about_images
from hdpfl_tools.tables.screen.leaks import about_features
from hdpfl_tools.tables.screen.losses import TableLosses, table_losses
from hdpfl_tools.tables.screen.notations import notation_of
from hdpfl_tools.tables.screen.repeats import about_placeholder, about_repeats
from hdpfl_tools.tables.site_data import SiteData, read_site_data
from hdpfl_tools.tables.sources.header import Wanted, header_name
from hdpfl_tools.tables.sources.open_rows import open_rows
from hdpfl_tools.tables.table_reader import RawTable, load_table
from hdpfl_tools.tables.table_records import Summary, check_width, ids_of, load_rows

MOST_UNREADABLE = 0.2
"""Share of records without a schema that may be left out for one reason."""
MOST_BEYOND = 0.8
"""Share of times beyond the last survival edge above which their unit is doubted.

Long follow-up is no mistake; days in place of months are.
"""
_SHOWN = 10


def check_site_data(
    source: DataSource, task: Task, schema_text: str, declared_records: int
) -> list[str]:
    """Return the lines of ``hdpfl-site profile check``, for site use.

    A line that starts with ``error:`` must be corrected before a run; one with ``warning:`` should
    be looked at. Lines about lost cells show their commonest texts, by label.

    Args:
        source: as for :func:`read_site_data`.
        task: as for :func:`read_site_data`.
        schema_text: as for :func:`read_site_data`.
        declared_records: the profile's constant N.

    Raises:
        DataError: as :func:`read_site_data`.
    """
    if source.format in TABLES:
        check_width(Schema.load(schema_text), declared_records)
    data = read_site_data(source, task, schema_text)
    summary, used = data.summary, len(data.train)
    held = f", {len(data.test)} held out for the site's own test" if data.test is not None else ""
    lines = [f"records: {summary.rows} found, {used} for training{held}"]
    if summary.withdrawn:
        lines.append(f"withdrawn: {summary.withdrawn} units are left out, with all their records")
    reasons = {why: n for why, n in summary.left_out.items() if why != "cannot be cut into cells"}
    lines += [f"left out: {count}, {why}" for why, count in reasons.items() if count]
    if source.format in TABLES:
        schema, site_table = Schema.load(schema_text), OwnTable.of(source)
        raw, losses, of_training = _losses_of(source, schema, site_table, data.positions)
        lines += [line for _, line in losses.lines()]
        if losses.rows.lost == losses.rows.held > 0:
            return lines  # the cause of all that follows
        lines += _about_all_columns(schema, summary)
        lines += _about_mapping(source, schema)
        if schema.label.bounds and (clipped := summary.clipped.get(schema.label.column)):
            lines.append(f"column '{schema.label.column}': {clipped} clipped to the bounds")
        lines += _about_times(schema.label, summary, losses)
        lines += _about_dates(raw, schema, site_table)
        lines += about_features(raw, schema, site_table, losses.labels, of_training)
        lines += _about_units(raw, schema, site_table)
        lines += _about_notation(raw, schema, site_table, source)
        if not schema.id:
            lines += _about_repeats(source, schema, site_table)
        names, rows = losses.labels.names, losses.labels.rows
        listed = ", ".join(f"'{name}' {(rows == group).sum()}" for group, name in enumerate(names))
        lines.append(f"label '{outcomes(schema)[-1].column}': {listed}")
    if source.column:
        lines += _about_ids(source, Schema.load(schema_text), summary)
    lines += _about_arrays(source, summary, task)
    if source.format == "images":
        lines += about_images(source, task)
    lines += _about_labels(data, task)
    return lines + list(_against_declared(data, declared_records))


def about_losses(source: DataSource, schema_text: str) -> list[str]:
    """Return the lines of ``plan`` about losses, for site use.

    Raises:
        DataError: as :func:`read_site_data`.
    """
    _, losses, _ = _losses_of(source, Schema.load(schema_text), OwnTable.of(source), None)
    return [line for _, line in losses.lines()]


def _losses_of(
    source: DataSource,
    schema: Schema,
    site_table: OwnTable,
    positions: npt.NDArray[np.int64] | None,
) -> tuple[RawTable, TableLosses, Mask]:
    """Return the site's table, its losses, and a mask of ``positions``."""
    wanted = site_table.all_wanted(schema)
    raw = load_rows(*source.place, wanted, schema, site_table, lost=True)
    used = np.ones(len(raw.positions), dtype=bool)
    if positions is not None and len(positions):
        used = np.isin(raw.positions, positions)
    return raw, table_losses(raw, schema, site_table, used), used


def _about_units(raw: RawTable, schema: Schema, site_table: OwnTable) -> Iterator[str]:
    """Yield errors about columns of two units that are stripped."""
    notation = site_table.form.notation
    for column in schema.columns:
        marks = by_length(site_table.own(column.name).strip)
        if len(marks) < 2:
            continue
        texts = raw.columns[site_table.wanted(column.name, column.aliases)]
        counts = np.bincount(texts.rows, minlength=len(texts.values)).tolist()
        units: dict[str, list[float]] = {}
        for text, count in zip(texts.plain, counts, strict=True):
            if mark := unit_in(text, marks):
                number = notation.number_in(text.removesuffix(mark.encode()).strip())
                units.setdefault(mark, []).extend([number] * count)
        if len({unit.casefold() for unit in units}) > 1:
            yield (
                f"error: column '{column.name}': 'strip' removes {len(units)} units: "
                f"{in_words(units)}. The site would read them as one unit; give each its factor "
                f"in 'data.columns.{column.name}.units'"
            )


def _about_notation(
    raw: RawTable, schema: Schema, site_table: OwnTable, source: DataSource
) -> Iterator[str]:
    """Yield the error about numbers of two notations of which the profile names none."""
    wanted = [
        site_table.wanted(column.name, column.aliases)
        for column in schema.columns
        if isinstance(column, NumberColumn) and not site_table.own(column.name).to
    ]
    _, ambiguous = notation_of([raw.columns[column] for column in wanted])
    if ambiguous and not {"decimal", "thousands"} & source.model_fields_set:
        yield f"error: {ambiguous}, in [data]"


def _about_repeats(source: DataSource, schema: Schema, site_table: OwnTable) -> Iterator[str]:
    """Yield warnings about repeated rows and a likely id."""
    path, file_format = source.place
    header = open_rows(path, file_format, site_table.form, site_table.all_wanted(schema)).header
    names = Counter(filter(None, map(header_name, header)))
    wanted = [Wanted((name,), f"'{name}'") for name, count in names.items() if count == 1]
    raw = load_table(path, file_format, wanted, site_table.form)
    columns = {each.names[0]: raw.columns[each] for each in wanted}
    used = {site_table.wanted(column.name).names[0] for column in schema.columns}
    yield from about_repeats(columns, [*used])


def _about_dates(raw: RawTable, schema: Schema, site_table: OwnTable) -> Iterator[str]:
    """Yield warnings about ambiguous dates."""
    read = {
        outcome.column: site_table.wanted(outcome.column, outcome.aliases)
        for outcome in outcomes(schema)
    }
    read |= {
        column.name: site_table.wanted(column.name, column.aliases) for column in schema.columns
    }
    read = {name: wanted for name, wanted in read.items() if site_table.own(name).to}
    for name, wanted in (
        read | ({site_table.last_by: site_table.dated} if site_table.last_by else {})
    ).items():
        how, column = site_table.own(name), raw.columns[wanted]
        if len(how.date_formats) < 2:
            continue
        days = np.array([column.days((form,), how.century_from) for form in how.date_formats])
        days = days[:, np.isfinite(days).any(axis=0)]
        twice = int((np.nanmin(days, axis=0) < np.nanmax(days, axis=0)).sum())
        if twice:
            yield (
                f"warning: column '{name}': {twice} of {days.shape[1]} dates are ambiguous: two of "
                "its 'date-formats' read them as two days, and the first counts; export them in "
                "one order"
            )


def _about_ids(source: DataSource, schema: Schema, summary: Summary) -> Iterator[str]:
    """Yield warnings about missing, repeated or differently spelled ids."""
    if summary.left_out["no id"]:
        yield (
            f"error: {summary.left_out['no id']} records have no id and are left out: write the "
            "id of its person (or other unit) into each record"
        )
    if summary.left_out["repeated id"]:
        yield (
            f"warning: {summary.left_out['repeated id']} records have a repeated id: training "
            f"reads only the {source.row_used} of an id, which protects the person; 'hdpfl-site "
            "evaluate' and 'worth' also read the other rows. Choose another row with 'data.row', "
            "or several with 'data.records-per-unit'. Do not give each row its own id: that "
            "would take the protection from the person"
        )
    site_table = OwnTable.of(source)
    last_by = site_table.last_by
    wanted = [site_table.wanted(schema.id), *([site_table.dated] if last_by else [])]
    raw = load_rows(*source.place, wanted, schema, site_table)
    if last_by and (undated := int(np.isinf(site_table.row_days(raw)).sum())):
        yield (
            f"warning: {undated} rows have no date in the column of 'data.row': such a row is "
            f"used only if its id has no other row; is 'data.columns.{last_by}.date-formats' "
            "right?"
        )
    ids = ids_of(raw, schema, site_table)
    yield from about_placeholder(
        [name for name in ids if name], f"data.columns.{schema.id}.missing"
    )
    rows: dict[bytes, int] = {}
    for row, name in zip(raw.positions.tolist(), ids, strict=True):
        if name:
            rows.setdefault(name, row)
    spelled = spellings([*rows])
    if spelled.alike:
        count = sum(map(len, spelled.alike))
        pairs = [" and ".join(str(rows[name] + 1) for name in group[:2]) for group in spelled.alike]
        yield (
            f"warning: {count} ids look like those of {len(spelled.alike)} persons: they differ "
            "only in leading zeros, case, blanks, marks or Unicode form (records "
            f"{', '.join(pairs[:_SHOWN])}{', …' if len(pairs) > _SHOWN else ''}, counted from 1). "
            "A run compares ids letter by letter: such a person has two records in training, "
            "which cost twice the ε that the ledger says, or has records on both sides of the "
            "holdout. Export each id in one form, as text"
        )
    if spelled.rounded:
        yield (
            f"warning: {spelled.rounded} ids are in a spreadsheet's scientific notation, which "
            "drops digits: two persons may have become one, and one person two. Export the ids "
            "again, as text"
        )


def _about_mapping(source: DataSource, schema: Schema) -> Iterator[str]:
    """Yield warnings for mapped columns that the schema lacks."""
    names = {schema.id, source.last_by, *(outcome.column for outcome in outcomes(schema))}
    names |= {column.name for column in schema.columns}
    for name in source.columns:
        if name not in names:
            yield f"warning: 'data.columns.{name}' is not a column of the run's 'schema'"


def _about_all_columns(schema: Schema, summary: Summary) -> Iterator[str]:
    """Yield the error about a table with all features missing."""
    rows = summary.rows - summary.left_out["cannot be cut into cells"]
    if rows and all(
        summary.filled[c.name] == rows and not summary.unreadable[c.name] for c in schema.columns
    ):
        yield (
            "error: every column of the schema is missing in every record: nothing can be learned, "
            "and ε would be spent; is it the right table, and are 'missing' and the names right?"
        )


def _about_times(label: Label, summary: Summary, losses: TableLosses) -> Iterator[str]:
    """Yield the line about times beyond the last edge, if any."""
    held = losses.outcomes[label.column].held
    beyond = summary.clipped.get(label.column, 0) if label.edges and held else 0
    line = (
        f"column '{label.column}': {beyond} times lie beyond the last edge and are censored there"
    )
    if beyond > MOST_BEYOND * held:
        line = (
            f"warning: column '{label.column}': {beyond} of {held} times lie beyond the last of "
            "the schema's edges and are censored there; is the unit that of the schema? If not, "
            f"set 'data.columns.{label.column}.factor'"
        )
    if beyond:
        yield line


def _about_arrays(source: DataSource, summary: Summary, task: Task) -> Iterator[str]:
    """Yield errors about schema-free records that do not fit the task."""
    for reason, remedy in (
        ("no known label", f"'y' must hold {targets_wanted(task)}"),
        ("no id", "each image must lie in the folder of its unit, inside a class folder"),
        ("in no class folder", f"the subfolders must be named 0 to {task.classes - 1}"),
        ("features not finite", "'x' must hold finite numbers; fill or remove the others"),
    ):
        count = summary.left_out.get(reason, 0)
        if source.format not in TABLES and count > MOST_UNREADABLE * summary.rows:
            yield f"error: left out: {count} of {summary.rows} records, {reason}: {remedy}"


def _about_labels(data: SiteData, task: Task) -> Iterator[str]:
    """Yield errors and warnings about the labels as a whole."""
    parts = [data.train] if data.test is None else [data.train, data.test]
    if not any(map(len, parts)):
        yield (
            "error: no record can be used, because no record has a label of the schema; the site "
            "would send only noise and spend its ε"
        )
    elif (
        task.classes
        and len({*np.concatenate([records.targets for records in parts]).tolist()}) == 1
    ):
        yield (
            "warning: every label is of the same class: these records cannot show a difference "
            "between the classes"
        )
    elif task.intervals and not any((records.targets % 2).any() for records in parts):
        yield "warning: no event occurs in these records: they show only that it is rare"


def _against_declared(data: SiteData, declared: int) -> Iterator[str]:
    """Yield a warning if training records differ from the declared number."""
    used = len(data.train)
    if used == 0 and data.test is not None and len(data.test):
        yield "warning: no record is left for training: the site would send only noise"
    if used > 1.1 * declared:
        yield (
            f"warning: there are {used} records for training, more than the {declared} declared: "
            "the budget holds, but batches are larger than 'training.batch-size' and steps are "
            "longer than planned; raise 'training.declared-records' (the number is public: round "
            "it)"
        )
    elif used < 0.9 * declared:
        yield (
            f"warning: there are {used} records for training, fewer than the {declared} declared: "
            "batches are smaller than planned, and the noise weighs more; lower "
            "'training.declared-records' (the number is public: round it)"
        )
