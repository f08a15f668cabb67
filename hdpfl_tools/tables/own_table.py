"""Names, units, dates and values of a site's own table, converted to the run's public schema.

The profile's entries for the table (``config/data_source.py``) act on each cell alone, as the
schema does: no cell raises, and no cell changes the result of another row. Errors name keys of the
profile and columns of the schema, never a value of either.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import NOBODY, DataSource, OwnColumn, Withdrawn
from hdpfl_flower.config.redacted import Redacted
from hdpfl_flower.data.columns import Cells, Mask, Notation
from hdpfl_flower.data.schema import CategoryColumn, Column, EventColumn, Label, Schema
from hdpfl_flower.data.values import plain, value_key
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.sources.csv_rows import AS_USUAL, Form
from hdpfl_tools.tables.sources.header import Wanted
from hdpfl_tools.tables.table_reader import RawTable

_ABOVE = (b">", b">=", "\u2265".encode())
_LIMIT = re.compile(rb"(<=?|>=?|\xe2\x89\xa4|\xe2\x89\xa5) *(.*)", re.DOTALL)
"""Sign of a limit of measurement (<, ≤, >, ≥) and the limit."""
_EPOCH = np.datetime64("1970-01-01", "D")


@dataclass(frozen=True, repr=False)
class OwnTable(Redacted):
    """Format of a site's table; by default that of the schema.

    Attributes:
        form: encoding, delimiter, numbers.
        missing: the site's own marks of a missing value, in every column.
        columns: by the schema's name.
        last_by: the site's date column that chooses the latest row of an id; empty: the first row.
        per_unit: records of an id that are used.
        withdrawn: units left out, as if the export had none of their rows.
    """

    form: Form = AS_USUAL
    missing: tuple[str, ...] = ()
    columns: Mapping[str, OwnColumn] = field(default_factory=dict)
    last_by: str = ""
    per_unit: int = 1
    withdrawn: Withdrawn = NOBODY

    @classmethod
    def of(cls, source: DataSource) -> OwnTable:
        """Return the format stated in the profile's ``[data]``."""
        notation = Notation(source.decimal, source.thousands)
        form = Form(
            source.encoding, source.delimiter, notation, source.sheet, source.select, source.skip
        )
        per_unit, withdrawn = source.records_per_unit, source.withdrawn()
        return cls(form, source.missing, source.columns, source.last_by, per_unit, withdrawn)

    def own(self, name: str) -> OwnColumn:
        """Return the site's form of the schema's column ``name``."""
        return self.columns.get(name, OwnColumn())

    def wanted(self, name: str, aliases: Sequence[str] = ()) -> Wanted:
        """Return the table column for the schema's column ``name``."""
        if self.own(name).absent:
            return Wanted((name,), f"'{name}'", absent=True)
        if name_here := self.own(name).name:
            return Wanted((name_here,), f"of 'data.columns.{name}.name' for '{name}'")
        return Wanted((name, *aliases), f"'{name}'")

    def reference(self, name: str) -> Wanted | None:
        """Return the reference date column for ``name``, or None."""
        column = self.own(name)
        if not column.to or _date(column.reference):
            return None
        return Wanted((column.reference,), f"of 'data.columns.{name}.reference' for '{name}'")

    def all_wanted(self, schema: Schema, *, label: bool = True, unit: bool = True) -> list[Wanted]:
        """Return all columns to read, optionally with label and id."""
        columns = [(column.name, column.aliases) for column in schema.columns]
        if label:
            columns[:0] = [(outcome.column, outcome.aliases) for outcome in outcomes(schema)]
        wanted = [self.wanted(name, aliases) for name, aliases in columns]
        wanted += [reference for name, _ in columns if (reference := self.reference(name))]
        if unit and schema.id:
            wanted += [self.wanted(schema.id), *([self.dated] if self.last_by else [])]
        return wanted

    @property
    def dated(self) -> Wanted:
        """Table column ``last_by``."""
        return Wanted((self.own(self.last_by).name or self.last_by,), "of 'data.row'")

    def row_days(self, raw: RawTable) -> npt.NDArray[np.float64]:
        """Return each row's day in column ``last_by``, (n,); −inf for none.

        Guarantees:
            Each depends on its own cell and the profile alone, on nothing of the schema.
        """
        written, column = self.own(self.last_by), raw.columns[self.dated]
        days = column.days(written.date_formats, written.century_from)
        missing = column.cells(self.form.notation).missing((*self.missing, *written.missing))
        return np.where(missing | ~np.isfinite(days), -np.inf, days)

    def check(self, schema: Schema) -> None:
        """Refuse entries that contradict the schema; ignore unknown columns.

        Raises:
            DataError: a unit or a date for categories, values for a number or values of no
                category, or a feature that is mapped to the column of the label or the id.
        """
        reserved = {c.column: self.wanted(c.column, c.aliases).names for c in outcomes(schema)}
        if schema.id:
            reserved[schema.id] = self.wanted(schema.id).names
        for name, groups in [
            *((outcome.column, categories_of(outcome)) for outcome in outcomes(schema)),
            (schema.id, ()),
            *((column.name, categories_of(column)) for column in schema.columns),
        ]:
            if name not in self.columns:
                continue
            written, key = self.columns[name], f"data.columns.{name}"
            if written.absent and name in reserved:
                raise DataError(
                    f"'{key}.absent' is set for the label or the id, but without these no record "
                    "counts; remove it"
                )
            is_number = name != schema.id and not groups
            if written.is_scaled and not is_number:
                raise DataError(
                    f"'{key}' has 'factor', 'to', 'units' or another key that makes numbers, but "
                    f"'{name}' is not a number in the run's 'schema'; remove these keys"
                )
            keys = {value_key(value) for values in groups for value in values}
            if any(value_key(value) not in keys for value in written.values.values()):
                raise DataError(
                    f"'{key}.values' names a value that '{name}' does not have in the run's "
                    "'schema'; write one of its categories or classes"
                )
            taken = {
                name_taken
                for other, names in reserved.items()
                if other != name
                for name_taken in names
            }
            if written.name in taken:
                raise DataError(
                    f"'{key}.name' is the column of the label or of the id; name another column"
                )

    def read(
        self, raw: RawTable, name: str, aliases: Sequence[str], marks: Sequence[str]
    ) -> tuple[Cells, Mask]:
        """Return the cells of column ``name`` in schema units, and missing ones.

        Args:
            raw: the table.
            name: of the schema.
            aliases: of the schema.
            marks: the schema's of a missing value; they and the site's own are looked up in the
                cells as they are, before any unit.
        """
        written, column = self.own(name), raw.columns[self.wanted(name, aliases)]
        cells = column.cells(self.form.notation)
        missing = cells.missing((*marks, *self.missing, *written.missing))
        if written.values:  # the site defines this value, even where it is a mark elsewhere
            missing &= (cells.lookup(list(written.values)) < 0) | cells.absent
        if written.to:
            days = column.days(written.date_formats, written.century_from)
            since, unknown = self.since(raw, name, len(days), marks)
            ages = written.to == "age"
            numbers = completed_years(days, since) if ages else days - since
            cells, missing = replace(cells, numbers=numbers, texts=None), missing | unknown
        if written.is_marked and cells.texts is not None:
            marked = [
                marked_number(text, written, self.form.notation) for text in cells.texts.plain
            ]
            numbers = np.array(marked, dtype=np.float64)[cells.texts.rows]
            cells = replace(cells, numbers=numbers)
        if written.factor != 1 or written.offset != 0:
            with np.errstate(over="ignore", invalid="ignore"):  # a warning would disclose it
                scaled = cells.numbers * written.factor + written.offset
            cells = replace(cells, numbers=np.where(np.isfinite(scaled), scaled, np.nan))
        return cells, missing

    def since(
        self, raw: RawTable, name: str, rows: int, marks: Sequence[str]
    ) -> tuple[npt.NDArray[np.float64], Mask]:
        """Return reference dates in days (n,), NaN for none, and missing ones."""
        written, wanted = self.own(name), self.reference(name)
        if wanted is None:
            days = (np.datetime64(_date(written.reference), "D") - _EPOCH).astype(np.float64)
            return np.full(rows, days), np.zeros(rows, dtype=bool)
        column = raw.columns[wanted]
        days_since = column.days(written.date_formats, written.century_from)
        return days_since, column.cells().missing((*marks, *self.missing))

    def words(self, name: str, groups: Sequence[Sequence[str]]) -> list[str]:
        """Return the first value of each group, the site's own if it has one.

        The schema's for all where one value would then stand for two groups.
        """
        texts, places = self.choices(name, groups)
        first = [texts[places.tolist().index(group)] for group in range(len(groups))]
        is_clear = len({*map(value_key, first)}) == len(groups)
        return first if is_clear else [values[0] for values in groups]

    def in_own_unit(self, name: str, numbers: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the schema's ``numbers`` (n,) in the unit of the table.

        They stay as they are where the table has dates.
        """
        written, values = self.own(name), np.asarray(numbers, dtype=np.float64)
        return values if written.to else (values - written.offset) / written.factor

    def choices(
        self, name: str, groups: Sequence[Sequence[str]]
    ) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return all allowed cell values and their category or class indices.

        The site's own values stand first: among equal values the first counts.
        """
        index = {value_key(value): group for group, values in enumerate(groups) for value in values}
        site_values = self.own(name).values
        texts = [*site_values, *(value for values in groups for value in values)]
        places = [index[value_key(value)] for value in site_values.values()]
        places += [group for group, values in enumerate(groups) for _ in values]
        return texts, np.array(places, dtype=np.int64)


def marked_number(text: bytes, column: OwnColumn, notation: Notation) -> float:
    """Return the number in ``text`` without the column's marks, or NaN.

    Linear in the text: each mark is removed once from each end, a unit from the last.

    >>> own = OwnColumn.model_validate({"below-limit": "half", "strip": ["mg/l"]})
    >>> [marked_number(text, own, Notation(",")) for text in (b"< 3 mg/l", b">500", b"mg/l")]
    [1.5, 500.0, nan]
    >>> own = OwnColumn.model_validate({"trailing-minus": True, "units": {"g": 1e3, "mg": 1.0}})
    >>> [marked_number(text, own, Notation()) for text in (b"5.2-", b"2 g", b"2mg", b"-5-", b"7")]
    [-5.2, 2000.0, 2.0, nan, 7.0]
    """
    share = 1.0
    if column.units:
        unit = unit_in(text, [*column.units])
        text = text.removesuffix(plain(unit).encode()).strip()
        share = column.units.get(unit, 1.0)
    for mark in by_length(column.strip):
        text = text.removeprefix(mark.encode()).removesuffix(mark.encode()).strip()
    if column.below_limit and (limit := _LIMIT.fullmatch(text)):
        share *= 0.5 if column.below_limit == "half" and limit[1] not in _ABOVE else 1.0
        text = limit[2]
    if column.trailing_minus and text.endswith(b"-") and text[:1] not in (b"-", b"+"):
        text = b"-" + text[:-1].strip()
    return share * notation.number_in(text)


def by_length(marks: Iterable[str]) -> list[str]:
    """Return marks in ASCII signs, the longest first."""
    return sorted(filter(None, map(plain, marks)), key=len, reverse=True)


def unit_in(text: bytes, units: Iterable[str]) -> str:
    """Return the longest of ``units`` that ends a text.

    >>> unit_in(b"2 mg", ["g", "mg"]), unit_in(b"2", ["g"])
    ('mg', '')
    """
    ends = [unit for unit in units if text.endswith(plain(unit).encode())]
    return max(ends, key=len, default="")


def outcomes(schema: Schema) -> tuple[Label | EventColumn, ...]:
    """Return the outcome columns: the label, and for survival the event."""
    label = schema.label
    return (label,) if label.event is None else (label, label.event)


def categories_of(column: Column | Label | EventColumn) -> tuple[tuple[str, ...], ...]:
    """Return the groups of synonymous values; none for numbers."""
    if isinstance(column, EventColumn):
        return column.groups
    if isinstance(column, Label):
        return column.classes
    return column.categories if isinstance(column, CategoryColumn) else ()


def completed_years(
    born: npt.NDArray[np.float64], today: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return ages in completed years, shape ``(n,)``; NaN before birth.

    A person born on 29 February is a year older on 1 March of a common year.

    Args:
        born: days since 1970-01-01, shape ``(n,)``; NaN for none.
        today: likewise.

    >>> days = [float((np.datetime64(day) - _EPOCH).astype(int)) for day in
    ...         ("2000-02-29", "2001-02-28", "2001-03-01", "1999-01-01")]
    >>> completed_years(np.full(3, days[0]), np.array(days[1:])).tolist()
    [0.0, 1.0, nan]
    """
    dated = np.isfinite(born) & np.isfinite(today)
    parts = [_year_and_day(np.where(dated, days, 0.0)) for days in (born, today)]
    (year, birthday), (later, date) = parts
    ages = (later - year - (date < birthday)).astype(np.float64)
    return np.where(dated & (today >= born), ages, np.nan)


def _year_and_day(
    days: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the year, and month and day as one sortable number."""
    dates = _EPOCH + days.astype("timedelta64[D]")
    months = dates.astype("datetime64[M]")
    year = dates.astype("datetime64[Y]").astype(np.int64)
    month = months.astype(np.int64) - year * 12
    day = (dates - months).astype(np.int64)
    return year, month * 32 + day


def _date(reference: str) -> datetime.date | None:
    """Return the date in ``reference``; None where it names a column or is empty."""
    try:
        return datetime.date.fromisoformat(reference)
    except ValueError:
        return None
