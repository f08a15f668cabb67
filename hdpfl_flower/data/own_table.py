"""A site's own names, units, dates and values become those of the run's public schema.

What the profile says of the site's table (``config/data_source.py``) acts on each cell alone, as
the schema does: no cell raises, and none changes what another row becomes. Errors name keys of the
profile and columns of the schema, never a value of either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import DataSource, OwnColumn
from hdpfl_flower.data.columns import Cells, Mask, Notation, value_key
from hdpfl_flower.data.schema import CategoryColumn, Column, EventColumn, Label, Schema
from hdpfl_flower.data.table_reader import AS_USUAL, Form, RawTable, Redacted, Wanted
from hdpfl_flower.errors import DataError

_EPOCH = np.datetime64("1970-01-01", "D")


@dataclass(frozen=True, repr=False)
class OwnTable(Redacted):
    """How a site's table is written; by default as the schema says.

    Attributes:
        form: encoding, delimiter, numbers.
        missing: the site's own marks of a missing value, in every column.
        columns: by the schema's name.
    """

    form: Form = AS_USUAL
    missing: tuple[str, ...] = ()
    columns: Mapping[str, OwnColumn] = field(default_factory=dict)

    @classmethod
    def of(cls, source: DataSource) -> OwnTable:
        """Return what the profile's ``[data]`` says."""
        notation = Notation(source.decimal, source.thousands)
        form = Form(source.encoding, source.delimiter, notation)
        return cls(form, source.missing, source.columns)

    def own(self, name: str) -> OwnColumn:
        """Return how the schema's column ``name`` is written here."""
        return self.columns.get(name, OwnColumn())

    def wanted(self, name: str, aliases: Sequence[str] = ()) -> Wanted:
        """Return the column of the table that holds the schema's column ``name``."""
        if own := self.own(name).name:
            return Wanted((own,), f"of 'data.columns.{name}.name' for '{name}'")
        return Wanted((name, *aliases), f"'{name}'")

    def reference(self, name: str) -> Wanted | None:
        """Return the column of the table from which dates of ``name`` count; None for none."""
        own = self.own(name)
        if not own.to or own.reference_date:
            return None
        return Wanted((own.reference,), f"of 'data.columns.{name}.reference' for '{name}'")

    def all_wanted(self, schema: Schema, *, label: bool = True, unit: bool = True) -> list[Wanted]:
        """Return every column to be read, with or without the label's and the id's."""
        columns = [(column.name, column.aliases) for column in schema.columns]
        if label:
            columns[:0] = [(one.column, one.aliases) for one in outcomes(schema)]
        found = [self.wanted(name, aliases) for name, aliases in columns]
        found += [each for name, _ in columns if (each := self.reference(name))]
        return found + ([self.wanted(schema.id)] if unit and schema.id else [])

    def check(self, schema: Schema) -> None:
        """Refuse what contradicts the schema; columns that it does not have are left alone.

        Raises:
            DataError: a unit or a date for categories, values for a number or values of no
                category, or a feature that is mapped to the column of the label or the id.
        """
        reserved = {
            one.column: self.wanted(one.column, one.aliases).names for one in outcomes(schema)
        }
        if schema.id:
            reserved[schema.id] = self.wanted(schema.id).names
        for name, groups in [
            *((one.column, categories_of(one)) for one in outcomes(schema)),
            (schema.id, ()),
            *((column.name, categories_of(column)) for column in schema.columns),
        ]:
            if name not in self.columns:
                continue
            own, key = self.columns[name], f"data.columns.{name}"
            is_number = name != schema.id and not groups
            if own.is_scaled and not is_number:
                raise DataError(
                    f"'{key}' has 'factor', 'offset' or 'to', which make numbers, and '{name}' is "
                    "no number in the run's 'schema'; remove them"
                )
            known = {value_key(value) for values in groups for value in values}
            if any(value_key(value) not in known for value in own.values.values()):
                raise DataError(
                    f"'{key}.values' names a value that '{name}' does not have in the run's "
                    "'schema'; write one of its categories or classes"
                )
            taken = {one for other, names in reserved.items() if other != name for one in names}
            if own.name in taken:
                raise DataError(
                    f"'{key}.name' is the column of the label or of the id; name another one"
                )

    def read(
        self, raw: RawTable, name: str, aliases: Sequence[str], marks: Sequence[str]
    ) -> tuple[Cells, Mask]:
        """Return the cells of the schema's column ``name`` in its units, and which are missing.

        Args:
            raw: the table.
            name: of the schema.
            aliases: of the schema.
            marks: the schema's of a missing value; they and the site's own are looked up in the
                cells as they are, before any unit.
        """
        own, column = self.own(name), raw.columns[self.wanted(name, aliases)]
        cells = column.cells(self.form.notation)
        missing = cells.missing((*marks, *self.missing, *own.missing))
        if own.values:  # the site says what this value means, also where it is a mark elsewhere
            missing &= (cells.lookup(list(own.values)) < 0) | cells.absent
        if own.to:
            days = column.days(own.date_formats)
            since, unknown = self.since(raw, name, len(days), marks)
            ages = own.to == "age"
            numbers = completed_years(days, since) if ages else days - since
            cells, missing = replace(cells, numbers=numbers, texts=None), missing | unknown
        if own.factor != 1 or own.offset != 0:
            with np.errstate(over="ignore", invalid="ignore"):  # a warning would disclose it
                scaled = cells.numbers * own.factor + own.offset
            cells = replace(cells, numbers=np.where(np.isfinite(scaled), scaled, np.nan))
        return cells, missing

    def since(
        self, raw: RawTable, name: str, rows: int, marks: Sequence[str]
    ) -> tuple[npt.NDArray[np.float64], Mask]:
        """Return the days of the reference of dates (n,), NaN for none, and where it is missing."""
        own, wanted = self.own(name), self.reference(name)
        if wanted is None:
            days = (np.datetime64(own.reference_date, "D") - _EPOCH).astype(np.float64)
            return np.full(rows, days), np.zeros(rows, dtype=bool)
        column = raw.columns[wanted]
        return column.days(own.date_formats), column.cells().missing((*marks, *self.missing))

    def choices(
        self, name: str, groups: Sequence[Sequence[str]]
    ) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Return every value that a cell may hold, and the index of its category or class.

        The site's own values stand first: of equal ones the first counts.
        """
        index = {value_key(value): at for at, values in enumerate(groups) for value in values}
        own = self.own(name).values
        texts = [*own, *(value for values in groups for value in values)]
        places = [index[value_key(value)] for value in own.values()]
        places += [at for at, values in enumerate(groups) for _ in values]
        return texts, np.array(places, dtype=np.int64)


def outcomes(schema: Schema) -> tuple[Label | EventColumn, ...]:
    """Return the columns of what is predicted: the label, and for survival the event."""
    label = schema.label
    return (label,) if label.event is None else (label, label.event)


def categories_of(column: Column | Label | EventColumn) -> tuple[tuple[str, ...], ...]:
    """Return the groups of values that mean the same; none for numbers."""
    if isinstance(column, EventColumn):
        return column.groups
    if isinstance(column, Label):
        return column.classes
    return column.categories if isinstance(column, CategoryColumn) else ()


def completed_years(
    born: npt.NDArray[np.float64], at: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return the age in completed years, shape ``(n,)``; NaN where ``at`` lies before ``born``.

    Who is born on 29 February is a year older on 1 March of a common year.

    Args:
        born: days since 1970-01-01, shape ``(n,)``; NaN for none.
        at: likewise.

    >>> days = [float((np.datetime64(day) - _EPOCH).astype(int)) for day in
    ...         ("2000-02-29", "2001-02-28", "2001-03-01", "1999-01-01")]
    >>> completed_years(np.full(3, days[0]), np.array(days[1:])).tolist()
    [0.0, 1.0, nan]
    """
    known = np.isfinite(born) & np.isfinite(at)
    parts = [_year_and_day(np.where(known, days, 0.0)) for days in (born, at)]
    (year, day), (later, on) = parts
    ages = (later - year - (on < day)).astype(np.float64)
    return np.where(known & (at >= born), ages, np.nan)


def _year_and_day(
    days: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the year, and the month and day of it as one number that sorts as they do."""
    dates = _EPOCH + days.astype("timedelta64[D]")
    months = dates.astype("datetime64[M]")
    year = dates.astype("datetime64[Y]").astype(np.int64)
    month = months.astype(np.int64) - year * 12
    day = (dates - months).astype(np.int64)
    return year, month * 32 + day
