"""Lost rows and cells of a table, by label.

A run counts them and says nothing, since a log may leave. Only commands of the site import this
file (``tests/hdpfl_tools/tables/test_site_check.py``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.data.columns import Cells, Mask, Texts
from hdpfl_flower.data.schema import Column, EventColumn, Label, NumberColumn, Schema
from hdpfl_tools.tables.own_table import OwnTable, outcomes
from hdpfl_tools.tables.screen.cell_forms import forms_in
from hdpfl_tools.tables.screen.lost_rows import (
    NO_OBJECT,
    Ints,
    LostRow,
    causes,
    lost_labels,
    lost_rows,
    one_cell_longer,
)
from hdpfl_tools.tables.table_reader import RawTable
from hdpfl_tools.tables.table_records import Summary, encode_column, event_of, is_time, outcomes_of

WARNED, MOST = 0.01, 0.2
"""Shares of lost rows, or of a column's cells, from which they are a warning and an error."""
FALSE_ALARM = 0.001
"""Bound on the probability that a loss independent of the label is an error, over a whole table."""
_SHOWN, _LONGEST = 10, 40
AnyColumn = Column | Label | EventColumn


@dataclass(frozen=True, repr=False, eq=False)
class Labels(Redacted):
    """Label of each row: class, event, or half of numbers.

    Attributes:
        names: of the groups.
        rows: group of each row read, shape ``(n,)``; -1 where unknown.
        lost: likewise of each lost row.
    """

    names: tuple[str, ...]
    rows: Ints
    lost: Ints


@dataclass(frozen=True, repr=False, eq=False)
class Loss(Redacted):
    """Lost rows, or lost cells of a column.

    Attributes:
        lost: their number.
        held: number that could be lost.
        texts: how often each of them is written so.
        by_label: lost and held ones of each group of labels.
        p: of the test that the loss does not depend on the label; 1 without a test.
    """

    lost: int
    held: int
    texts: Counter[str] = field(default_factory=Counter)
    by_label: tuple[tuple[str, int, int], ...] = ()
    p: float = 1.0

    def level(self, tests: int) -> str:
        """Return ``error: ``, ``warning: `` or an empty text."""
        if self.lost and (self.lost >= MOST * self.held or self.depends(tests)):
            return "error: "
        return "warning: " if self.lost and self.lost >= WARNED * self.held else ""

    def depends(self, tests: float) -> bool:
        """Return whether the loss depends on the label, by ``tests`` tests in all."""
        return self.p * tests < FALSE_ALARM

    def in_words(self, tests: float) -> str:
        """Return commonest texts, counts by label, and a failed test."""
        commonest = self.texts.most_common(_SHOWN)
        listed = "; ".join(f"'{text}' {count} times" for text, count in commonest)
        more = len(self.texts) - _SHOWN
        listed = f": {listed}" + (f"; and {more} other texts" if more > 0 else "") if listed else ""
        by = ", ".join(f"{lost} of {held} with '{name}'" for name, lost, held in self.by_label)
        labelled = sum(lost for _, lost, _ in self.by_label)
        by += f", {self.lost - labelled} of unknown label" if by and labelled < self.lost else ""
        depends = f"; the loss depends on the label (Fisher's exact test, p = {self.p:.1g})"
        by_label = f"; by label: {by}" if by else ""
        return listed + by_label + (depends if self.depends(tests) else "")


def loss(lost: Mask, held: Mask, labels: Labels | None, texts: Counter[str] | None = None) -> Loss:
    """Return the loss of cells ``lost`` among those ``held``, both (n,)."""
    pairs = []
    if labels is not None:
        groups = [(name, labels.rows == group) for group, name in enumerate(labels.names)]
        pairs = [(name, int((lost & of).sum()), int((held & of).sum())) for name, of in groups]
    return _of_counts(int(lost.sum()), int(held.sum()), pairs, texts)


def loss_of_rows(rows: int, lost: int, labels: Labels | None) -> Loss:
    """Return the loss of ``lost`` rows beside ``rows`` read."""
    pairs = []
    if labels is not None:
        count = len(labels.names)
        gone, read = (
            np.bincount(of[of >= 0], minlength=count).tolist() for of in (labels.lost, labels.rows)
        )
        pairs = [(n, a, a + b) for n, a, b in zip(labels.names, gone, read, strict=True)]
    return _of_counts(lost, rows + lost, pairs)


def _of_counts(
    lost: int, held: int, pairs: Sequence[tuple[str, int, int]], texts: Counter[str] | None = None
) -> Loss:
    """Return the loss, tested by Fisher's test of each group against all others (Bonferroni)."""
    if not lost:
        return Loss(0, held)
    p, all_lost, every = 1.0, sum(pair[1] for pair in pairs), sum(pair[2] for pair in pairs)
    if 0 < all_lost < every:
        from scipy.stats import fisher_exact  # takes .6 s to import

        factor = 1 if len(pairs) == 2 else len(pairs)
        for _, gone, of in pairs:
            table = [[gone, of - gone], [all_lost - gone, every - of - all_lost + gone]]
            p = min(p, factor * float(fisher_exact(table).pvalue))
    return Loss(lost, held, texts or Counter(), tuple(pairs), p)


def labels_of(
    raw: RawTable, schema: Schema, site_table: OwnTable, lost: Sequence[LostRow]
) -> Labels:
    """Return the labels of all rows, of a lost one if its cells leave one reading."""
    column = outcomes(schema)[-1]  # of survival: the event
    cells, missing = site_table.read(raw, column.column, column.aliases, schema.missing)
    groups = schema.label.classes if schema.label.event is None else schema.label.event.groups
    if groups:
        texts, places = site_table.choices(column.column, groups)

        def group_of(read: Cells) -> Ints:
            index = read.lookup(texts)
            return np.where(index >= 0, places[index], -1)

        names = tuple(values[0] for values in groups)
    else:
        numbers = cells.numbers[np.isfinite(cells.numbers) & ~missing]
        middle = float(np.median(numbers)) if len(numbers) else 0.0

        def group_of(read: Cells) -> Ints:
            above = (read.numbers > middle).astype(np.int64)
            return np.where(np.isfinite(read.numbers), above, -1)

        names = (f"at most {middle:g}", f"above {middle:g}")
    marks = (*schema.missing, *site_table.missing)

    def group_of_texts(written: Sequence[bytes]) -> Ints:
        read = Texts.of(written).cells(site_table.form.notation)
        return np.where(read.missing(marks), -1, group_of(read))

    place = raw.lost.places[site_table.wanted(column.column, column.aliases)] if raw.lost else 0
    is_plain = bool(groups) or not site_table.own(column.column).is_scaled
    of_lost = lost_labels(lost, place, group_of_texts) if is_plain else np.full(len(lost), -1)
    return Labels(names, np.where(missing, -1, group_of(cells)), of_lost)


@dataclass(frozen=True, repr=False, eq=False)
class TableLosses(Redacted):
    """Losses of a table.

    Attributes:
        rows: that cannot be cut.
        lost: those rows.
        doubtful: lines in quoted cells that look like rows.
        labels: of all rows.
        outcomes: unreadable labels, by column.
        cells: unreadable ones, by column.
        clipped: numbers outside of the bounds, by column.
        dates: columns whose cells are dates.
    """

    rows: Loss
    lost: tuple[LostRow, ...]
    doubtful: int
    labels: Labels
    outcomes: Mapping[str, Loss]
    cells: Mapping[str, Loss]
    clipped: Mapping[str, Loss]
    dates: frozenset[str] = frozenset()

    @property
    def tests(self) -> int:
        """Tests against the label."""
        return len(self.cells) + 1

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield columns, empty for all, and their lines."""
        columns = {**self.outcomes, **self.cells}
        lost, held = (sum(getattr(c, name) for c in columns.values()) for name in ("lost", "held"))
        clipped = sum(c.lost for c in self.clipped.values())
        rows = f"lost: {self.rows.lost} of {self.rows.held} records, {lost} of {held} cells"
        yield "", f"{rows} that hold something; {clipped} numbers are clipped"
        if self.rows.lost:
            yield "", self._about_rows()
        if self.doubtful:
            message = (
                f"warning: {self.doubtful} lines inside quotes look like whole records: does "
                "every quote have its partner? In a cell, a quote must be doubled (RFC 4180)"
            )
            yield "", message
        for name, cells in columns.items():
            if cells.lost:
                forms = forms_in(cells.texts, dates=name in self.dates)
                message = (
                    f"{cells.level(self.tests)}column '{name}': {cells.lost} of {cells.held} cells "
                    f"that hold something cannot be read{cells.in_words(self.tests)}"
                    f"{forms and '. Of these cells' + forms.removeprefix(':')}. Set how the "
                    "site writes them: 'decimal', 'thousands', 'missing' or 'encoding' in [data], "
                    "'values', 'missing', 'strip', 'units', 'below-limit' or 'to' in "
                    f"[data.columns.{name}]"
                )
                yield name, message
        for name, cells in self.clipped.items():
            if cells.lost:
                is_many = cells.lost >= WARNED * cells.held
                advice = (
                    f"; codes of a missing value belong in 'data.columns.{name}.missing'"
                    if is_many
                    else ""
                )
                if cells.lost > MOST * cells.held:
                    advice = (
                        "; is the unit that of the schema? If not, set "
                        f"'data.columns.{name}.factor'"
                    )
                message = (
                    f"{'warning: ' if is_many else ''}column '{name}': {cells.lost} of "
                    f"{cells.held} numbers lie outside the schema's bounds and are clipped"
                    f"{cells.in_words(math.inf)}{advice}"
                )
                yield name, message

    def _about_rows(self) -> str:
        count, every = self.rows.lost, self.rows.held
        if count == every and {row.missing for row in self.lost} == {-1}:
            return f"error: {one_cell_longer(self.lost)}"
        listed = ", ".join(str(row.number + 1) for row in self.lost[:_SHOWN])
        more = ", …" if count > _SHOWN else ""
        level, how = self.rows.level(self.tests), self.rows.in_words(self.tests)
        remedy = "Export the table with a CSV writer (RFC 4180)"
        if self.lost[0].why == NO_OBJECT:
            remedy = "Write each record as one JSON object on a line of its own, in UTF-8"
        return (
            f"{level}{count} of {every} records cannot be cut into the cells of the header and are "
            f"lost: {causes(self.lost)} (records {listed}{more}, counted from 1){how}. {remedy}"
        )


def table_losses(
    raw: RawTable, schema: Schema, site_table: OwnTable, used: Mask | None = None
) -> TableLosses:
    """Return the losses of ``raw``, clipped numbers of ``used`` rows."""
    lost = lost_rows(raw.lost)
    labels = labels_of(raw, schema, site_table, lost)
    cells: dict[str, Loss] = {}
    clipped: dict[str, Loss] = {}
    for column in schema.columns:
        bad, missing = unreadable(column, raw, schema, site_table)
        cells[column.name] = _cells_lost(column, bad, missing, raw, schema, site_table, labels)
        if isinstance(column, NumberColumn):
            numbers = site_table.read(raw, column.name, column.aliases, ())[0].numbers
            of_training = ~missing if used is None else ~missing & used
            outside = of_training & ((numbers < column.bounds[0]) | (numbers > column.bounds[1]))
            texts = counted(raw.columns[site_table.wanted(column.name, column.aliases)], outside)
            clipped[column.name] = loss(outside, of_training, labels, texts)
    of_label = {
        outcome.column: _cells_lost(
            outcome, *unreadable(outcome, raw, schema, site_table), raw, schema, site_table, None
        )
        for outcome in outcomes(schema)
    }
    rows = loss_of_rows(len(raw.positions), len(lost), labels)
    doubtful = raw.lost.doubtful if raw.lost else 0
    dates = frozenset(name for name, column in site_table.columns.items() if column.to)
    return TableLosses(rows, tuple(lost), doubtful, labels, of_label, cells, clipped, dates)


def _cells_lost(
    column: AnyColumn,
    bad: Mask,
    missing: Mask,
    raw: RawTable,
    schema: Schema,
    site_table: OwnTable,
    labels: Labels | None,
) -> Loss:
    name = column.column if isinstance(column, (Label, EventColumn)) else column.name
    texts = (
        _texts(raw, name, column.aliases, schema.missing, site_table, bad) if bad.any() else None
    )
    return loss(bad, ~missing, labels, texts)


def unreadable(
    column: AnyColumn, raw: RawTable, schema: Schema, site_table: OwnTable
) -> tuple[Mask, Mask]:
    """Return masks of unreadable and of missing cells, both (n,)."""
    if isinstance(column, EventColumn):
        index, missing = event_of(raw, schema, site_table)
        return (index < 0) & ~missing, missing
    if isinstance(column, Label):
        cells, missing = site_table.read(raw, column.column, column.aliases, schema.missing)
        if column.edges:
            return ~is_time(cells.numbers) & ~missing, missing
        outcomes_read = outcomes_of(raw, schema, site_table, Summary(raw.rows))
        return ~outcomes_read.known & ~outcomes_read.missing, outcomes_read.missing
    block = np.zeros((len(raw.positions), len(column.feature_names)), dtype=np.float32)
    filled, missing, _ = encode_column(column, raw, schema, site_table, block)
    return filled & ~missing, missing


def _texts(
    raw: RawTable,
    name: str,
    aliases: Sequence[str],
    marks: Sequence[str],
    site_table: OwnTable,
    bad: Mask,
) -> Counter[str]:
    """Return the unreadable texts in the rows ``bad`` of a column."""
    column, how = raw.columns[site_table.wanted(name, aliases)], site_table.own(name)
    if not how.to:
        return counted(column, bad)
    dated = np.isfinite(column.days(how.date_formats, how.century_from))
    texts = counted(column, bad & ~dated)
    since, _ = site_table.since(raw, name, len(bad), marks)
    reference = site_table.reference(name)
    if reference is not None:
        texts += counted(raw.columns[reference], bad & dated & ~np.isfinite(since))
    late = int((bad & dated & np.isfinite(since)).sum())
    # An age below 0, or a time to an event.
    order = "after" if how.to == "age" else "before"
    return texts + Counter({f"(a date {order} 'reference')": late} if late else {})


def counted(texts: Texts, rows: Mask) -> Counter[str]:
    """Return the count of each text in ``rows`` of a column."""
    counts = np.bincount(texts.rows[rows], minlength=len(texts.values))
    counted_texts: Counter[str] = Counter()
    for row in np.flatnonzero(counts):
        text = texts.values[row][: 4 * _LONGEST].decode(errors="replace")
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
        counted_texts[shown] += int(counts[row])
    return counted_texts
