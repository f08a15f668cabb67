"""Place and format of a site's records: ``[data]`` of its profile.

The run's schema is public and the same at every site. The differences between sites stand here:
names of columns, units, dates, decimal commas, encodings. None of it leaves the site.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from hdpfl_flower.config.redacted import RedactedModel
from hdpfl_flower.errors import DataError

AFile = Annotated[
    Path, BeforeValidator(lambda value: Path(value) if isinstance(value, str) else value)
]
AList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Texts = Annotated[tuple[str, ...], AList]
Finite = Annotated[float, Field(allow_inf_nan=False)]

TABLES = ("table", "csv", "parquet")
"""Formats of ``[data]`` with columns, and so perhaps an id."""
PARTIAL_DATES = ("%Y-%m", "%Y")
"""Forms of ``date-formats`` without a day or month."""
DIRECTIVES = frozenset("YymbdHMSfz%")
"""Letters after a % in ``date-formats``: numbers, English months of three letters, and zones."""


def _texts_by_text(value: object) -> object:
    """Refuse values other than texts, without naming a site's value."""
    if isinstance(value, dict) and not all(isinstance(text, str) for text in value.values()):
        raise ValueError('must be a table of texts in quotes: { own = "the schema\'s" }')
    return value


_NO_UNIT = re.compile("[-+\\u2212()0-9.,\\s]*")


def _factors(units: dict[str, float]) -> dict[str, float]:
    """Refuse a unit whose factor makes every number the same."""
    if 0 in units.values():
        raise ValueError("'units' has a factor of 0, which makes every value the same")
    return units


class OwnColumn(RedactedModel):
    """How a column of the run's schema is written in this site's own table.

    A table ``[data.columns.NAME]`` each; NAME is the schema's.
    """

    name: str = Field(
        "",
        description="The column's name in the site's table. Empty: it has the schema's "
        "name or an alias.",
    )
    factor: Finite = Field(
        1.0,
        description="A number of the table times `factor`, plus `offset`, has the schema's unit. "
        "Example: 38.67 for cholesterol from mmol/l to mg/dl.",
    )
    offset: Finite = Field(0.0, description="The number that is added after `factor`.")
    to: Literal["", "age", "days"] = Field(
        "",
        description="The cells are dates, and become numbers. `age`: the completed years from the "
        "date to `reference`. `days`: the days from `reference` to the date; they are negative if "
        "the date is before it.",
    )
    date_formats: Annotated[Texts, Field(min_length=1)] = Field(
        ("%Y-%m-%d",),
        description="Forms of dates written as texts; the first that fits counts, then ISO 8601. "
        "Examples: `%d.%m.%Y`, `%Y-%m-%dT%H:%M:%S%z` (FHIR; the date counts as it is written), "
        "`%d%b%Y` (SAS; English months).",
    )
    century_from: Annotated[int, Field(ge=0, le=9900)] = Field(
        0, description="The first of the hundred years in which years with two digits (`%y`) lie."
    )
    below_limit: Literal["", "half", "limit"] = Field(
        "",
        description="How the site reads `<3`: as half of the limit, or as the limit itself. "
        "`>500` is then read as 500. Empty: such a cell cannot be read.",
    )
    strip: Texts = Field(
        (),
        description='Marks, and one unit, that stand at an end of the numbers: `["mg/l"]`. If the '
        "cells hold two units, the check reports an error: write `units`.",
    )
    units: Annotated[dict[str, Finite], AfterValidator(_factors)] = Field(
        {},
        description="Units that stand at the end of the numbers. A number with a unit is "
        'multiplied by the unit\'s factor: `{ "mg/l" = 1.0, "mg/dl" = 10.0 }`. A number without a '
        "unit stays as it is.",
    )
    trailing_minus: bool = Field(
        False,
        description="If true, `5.2-` is read as −5.2; SAP writes numbers so. If false, "
        "it cannot be read.",
    )
    absent: bool = Field(
        False,
        description="If true, this site does not have the column. It is then filled in every "
        "record like a missing cell; the check counts this, and the report names the column.",
    )
    reference: str = Field(
        "",
        description="A date, such as `2024-12-31`, or the name of a column of the site's table "
        "whose dates have the same formats. Do not change it to each day's date: the records "
        "would change from day to day.",
    )
    missing: Texts = Field((), description="Marks of a missing value in only this column.")
    values: Annotated[dict[str, str], BeforeValidator(_texts_by_text)] = Field(
        {},
        description="The site's own values, each with a value of the schema's category or class: "
        '`{ W = "female", M = "male" }`.',
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.factor == 0:
            raise ValueError("'factor' is 0, which makes every value the same; give the unit's")
        if bool(self.to) != bool(self.reference):
            raise ValueError(
                "'to' and 'reference' go together: a date becomes a number by its distance from "
                "another date"
            )
        self._check_marks()
        if self.is_marked and (self.to or self.values):
            raise ValueError(
                "'strip', 'units', 'trailing-minus' and 'below-limit' are for numbers: remove 'to' "
                "and 'values', or them"
            )
        if self.absent and self.model_fields_set != {"absent"}:
            raise ValueError("'absent' excludes all other keys of its column; remove them, or it")
        if self.to and self.values:
            raise ValueError("'values' name categories, and 'to' makes a number; remove one")
        for form in self.date_formats:
            if not is_date_format(form):
                raise ValueError(
                    "'date-formats' may hold %d, %m or %b (English months), %Y or %y, %H, %M, %S, "
                    "%f and %z, each once, the first three always, or be %Y-%m or %Y (the middle "
                    "counts); others depend on the machine, or read ISO 8601 as other days"
                )
        if any("%y" in form for form in self.date_formats) != bool(self.century_from):
            raise ValueError(
                "'century-from' and %y in 'date-formats' go together: two digits do not say which "
                "century; give its first year, such as 1930, or remove it"
            )
        return self

    def _check_marks(self) -> None:
        """Refuse marks that belong to a number."""
        if any(_NO_UNIT.fullmatch(mark) for mark in (*self.strip, *self.units)):
            raise ValueError(
                "'strip' and 'units' hold a sign or digits, which belong to the number: a minus is "
                "no unit; `5.2-` is read by 'trailing-minus'"
            )
        if self.strip and self.units:
            raise ValueError("'strip' and 'units' exclude each other; name all marks in 'units'")

    @property
    def is_marked(self) -> bool:
        """Whether something beside its numbers stands in the cells."""
        return bool(self.strip or self.units or self.trailing_minus or self.below_limit)

    @property
    def is_scaled(self) -> bool:
        """Whether the column must be one of numbers."""
        return self.factor != 1 or self.offset != 0 or bool(self.to) or self.is_marked


def is_date_format(text: str) -> bool:
    """Return whether ``text`` is a machine-independent form of dates.

    >>> [is_date_format(text) for text in ("%d.%m.%Y", "%d%b%y", "%d. %B %Y", "%Y-%m", "%m.%Y")]
    [True, True, False, True, False]
    """
    if text in PARTIAL_DATES or text == "%Y-%d-%m":  # which reads ISO 8601 as other days
        return text in PARTIAL_DATES
    used = [mark for mark in re.findall(r"%(.?)", text, re.DOTALL) if mark != "%"]
    date = sorted({"y": "Y", "b": "m"}.get(mark, mark) for mark in used if mark in "Yymbd")
    return date == ["Y", "d", "m"] and {*used} <= DIRECTIVES and len(used) == len({*used})


@dataclass(frozen=True, repr=False)
class Withdrawn:
    """Units that no reading of a site's records returns.

    Attributes:
        key: 32 random bytes on the site's disk; without it a digest tells no id, however few ids
            there are to try.
        digests: HMAC-SHA256 of the ids, in hexadecimal.
    """

    key: bytes = b""
    digests: frozenset[str] = frozenset()

    def __contains__(self, unit: object) -> bool:
        """Return whether the unit of an id in bytes, as a run reads it, was withdrawn."""
        return isinstance(unit, bytes) and keyed_digest(self.key, unit) in self.digests

    def rest(self, units: Iterable[bytes]) -> list[int]:
        """Return the places of the ids that were not withdrawn, in order."""
        return [place for place, unit in enumerate(units) if unit not in self]


def keyed_digest(key: bytes, unit: bytes) -> str:
    """Return the digest by which a ledger knows the unit of an id.

    >>> keyed_digest(b"one", b"P-1") == keyed_digest(b"two", b"P-1")
    False
    """
    return hmac.new(key, unit, hashlib.sha256).hexdigest()


NOBODY = Withdrawn()


Encoding = Literal[
    "utf-8", "latin-1", "iso8859-2", "iso8859-15", "cp1250", "cp1251", "cp1252", "cp437", "cp850",
    "mac-roman",
]  # fmt: skip


_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|\[[^]]*\]|`[^`]*`""")
_COMBINES = re.compile(
    r"\b(over|limit|offset|fetch|group|having|distinct|union|intersect|except|recursive)\b"
    r"|\btablesample\b|\(\s*(?:select|with)\b"
    r"|\b(?:avg|sum|count|min|max|total|median|mode|stddev\w*|var(?:_\w+|iance)|corr|covar\w*"
    r"|percentile\w*|\w+_agg|group_concat|random)\s*\(",
    re.IGNORECASE,
)
"""Words of a SELECT by which a row may come from rows of other units."""


class TableFile(RedactedModel):
    """A table in a file or a database: ``[data]``, and each of ``[data.tables]``."""

    path: AFile = Field(Path(), description="The file or the folder.")
    encoding: Encoding = Field("utf-8", description="The encoding of a CSV file.")
    delimiter: str = Field(
        "",
        description="The character between the cells of a CSV file. Empty: the comma, semicolon, "
        "tab or bar that gives the header the most columns.",
    )
    skip: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Lines before the header of a CSV file or a sheet. 0: the title lines are "
        "found without it.",
    )
    sheet: str = Field("", description="Sheet of a workbook. Empty: the only sheet that has cells.")
    select: str = Field(
        "",
        description="One SELECT in the SQL of an SQLite or PostgreSQL database. Each of its rows "
        "must come from rows of its own unit. So a SELECT that combines rows (`GROUP BY`, `LIMIT`, "
        "`avg(…)`, a SELECT inside) is refused: do this in `query`, which tests it. Empty: the "
        "whole table of an SQLite database that has only one.",
    )
    connection: str = Field(
        "",
        description="For PostgreSQL: a connection string without a password (`host=db dbname=lab "
        "user=reader`), or `$NAME`, the environment variable that holds the string. The password "
        "comes from libpq's `PGPASSWORD` or password file.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        # A quote or a line end would cut inside of cells.
        if self.delimiter in ('"', "\n", "\r") or len(self.delimiter.encode()) > 1:
            raise ValueError(
                "'delimiter' must be one plain character, such as ';' or \"\\t\", and no quote; "
                "write an empty text to have it found"
            )
        if _COMBINES.search(_QUOTED.sub("''", self.select)):
            raise ValueError(
                "'select' combines rows, as by GROUP BY, LIMIT, avg(…) or a SELECT inside: a row "
                "may then come from rows of other units, which ε does not cover; select plain "
                "rows here, and combine those of each unit in 'data.query', which tests it"
            )
        if self.connection and not self.select:
            raise ValueError("'connection' needs 'select', one SELECT that the database runs")
        if "password=" in self.connection.replace(" ", "").lower() or re.search(
            r"//[^/@]*:[^/@]*@", self.connection
        ):
            raise ValueError(
                "'connection' holds a password; write it into libpq's password file (~/.pgpass), "
                "or the whole string into an environment variable, here as $NAME"
            )
        return self


def _a_path(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


class QueryTable(TableFile):
    """A table that ``query`` reads: ``[data.tables.NAME]``."""

    id: str = Field(
        "",
        description="The table's column of the protected unit, or an expression of its columns. "
        'Empty: the column that `data.id` names. `"-"`: no row belongs to a unit (a list of '
        "codes).",
    )


class DataSource(TableFile):
    """Where the site's records lie."""

    format: Literal["table", "csv", "parquet", "npz", "images"] = Field(
        "table",
        description="`table`: a table in a file of any kind, read by the run's public schema. "
        "`csv` and `parquet`: the same, but any other kind of file is refused. `npz`: a file with "
        "arrays `x` and `y`. `images`: a folder with a subfolder for each class, named 0, 1, 2, …",
    )
    query: str = Field(
        "",
        description="One SELECT of DuckDB over the tables of `[data.tables]`, in place of `path`. "
        "It must give each unit the same rows, whatever other units there are; an import tests "
        "this.",
    )
    tables: dict[str, Annotated[QueryTable, BeforeValidator(_a_path)]] = Field(
        {},
        description="The tables that `query` reads, each with its own file: see "
        "`[data.tables.NAME]`.",
    )
    holdout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of the records that is kept out of training, for the site's own test. "
        "The draw is fixed: it depends on the id, or, without an id, on the row or file as it is "
        "stored. So without an id a new column changes the draw.",
    )
    id: str = Field(
        "",
        description="Column of the protected unit, such as a patient's number. The run's schema "
        "must name the same column. For images write `folder`: each folder inside a class folder "
        "is then a unit, and the run's `task.id` must be folder. Empty: a row or an image is a "
        "unit, and the site declines a run whose schema names an id.",
    )
    row: Annotated[str, Field(pattern=r"^(first|last by \S.*)$")] = Field(
        "first",
        description="Which labelled row of an id training uses. `first`: the first row. `last by "
        "COLUMN`: the row with the latest day in this column of the site's table, read by "
        "`data.columns.COLUMN`; of several rows of this day, the last one. A row without a date "
        "is used only if the id has no row with a date.",
    )
    records_per_unit: Annotated[int, Field(ge=1, le=64)] = Field(
        1,
        description="How many rows of an id DP-SGD uses, in the order of `row` (from the latest "
        "day). The mean of their gradients is clipped as one gradient, and ε still protects the "
        "id. Everything else uses one record.",
    )
    decimal: Literal[".", ","] = Field(
        ".", description="The decimal mark: with a comma, 1,5 is a number and 1.5 is not."
    )
    thousands: Literal["", ".", ",", "'", " "] = Field(
        "", description="The mark that may stand between groups of three digits, as in 1.234,5."
    )
    missing: Texts = Field(
        (), description="The site's own marks of a missing value, in addition to the schema's."
    )
    subgroups: Texts = Field(
        (),
        description='Columns of the schema or of this site\'s own table, such as `["sex"]`. '
        "`hdpfl-site evaluate` measures a model on each of their values that has 20 units or "
        "more. Nothing of this is sent.",
    )
    bits: Annotated[int, Field(ge=9, le=16)] = Field(
        16,
        description="Bits of grey images that have more than 8, such as 12 for a CT. The greatest "
        "number with so many bits becomes 1.",
    )
    columns: dict[str, OwnColumn] = Field(
        {},
        description="How columns of the schema are written at this site: see "
        "`[data.columns.NAME]`.",
    )
    _withdrawn: Callable[[], Withdrawn] | None = PrivateAttr(None)
    _frozen: Callable[[], Path | None] | None = PrivateAttr(None)

    def without(self, withdrawn: Callable[[], Withdrawn]) -> Self:
        """Return this source without the units that ``withdrawn`` names at each reading."""
        source = self.model_copy()
        source._withdrawn = withdrawn
        return source

    def frozen(self, table: Callable[[], Path | None]) -> Self:
        """Return this source, read from the frozen table that ``table`` names at each reading."""
        source = self.model_copy()
        source._frozen = table
        return source

    def elsewhere(self, path: Path) -> Self:
        """Return this source for another table, written like this one, without a holdout."""
        changes = {"path": path, "format": "table", "holdout": 0.0, "query": "", "tables": {}}
        source = self.model_copy(update={**changes, "connection": "", "select": ""})
        source._frozen = None
        return source

    @property
    def place(self) -> tuple[Path, str]:
        """Path and format of the table that is read: the frozen one where there is one.

        Raises:
            DataError: there is none, and the source is no file.
        """
        table = self._frozen() if self._frozen is not None else None
        if table is None and self.path == Path():
            raise DataError(
                "a query and a database are read into a table beside the ledger; create that: "
                "hdpfl-site ledger --init"
            )
        return (self.path, self.format) if table is None else (table, "frozen")

    def withdrawn(self) -> Withdrawn:
        """Return the units that a reading leaves out; none without a ledger."""
        return NOBODY if self._withdrawn is None else self._withdrawn()

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        of_folders = self.format == "images" and self.id == "folder"
        if self.id and self.format not in TABLES and not of_folders:
            raise ValueError(
                "'data.id' names a column, and only a 'data.format' of a table has columns: "
                'write "folder" where each unit\'s images have a folder, or remove it'
            )
        if self.bits != 16 and self.format != "images":
            raise ValueError("'data.bits' is for images; remove it")
        for key, is_set in (("row", self.last_by), ("records-per-unit", self.records_per_unit > 1)):
            if is_set and not self.column:
                raise ValueError(
                    f"'data.{key}' chooses records of an id in a table; set 'data.id', or remove it"
                )
        for key in self._wrong_here():
            raise ValueError(f"'data.{key}' does not go with this 'data.format'; remove it")
        places = [self.path != Path(), bool(self.query), bool(self.connection)]
        if sum(places) != 1 or bool(self.tables) != bool(self.query):
            raise ValueError(
                "'data.path' names a file, 'data.connection' a database, 'data.query' with "
                "'data.tables' several; set one of them"
            )
        if self.query and not self.id:
            raise ValueError(
                "'data.query' needs 'data.id': a query may use many rows of a person, and ε would "
                "be of one"
            )
        if self.thousands == self.decimal:
            raise ValueError("'data.thousands' is the mark in 'data.decimal'; change one of them")
        return self

    @property
    def column(self) -> str:
        """The column of the unit; empty without, as of images."""
        return self.id if self.format in TABLES else ""

    @property
    def own_column(self) -> str:
        """The unit's column by its name in the site's own export; empty without."""
        unit_column = self.columns.get(self.id)
        return unit_column.name if unit_column and unit_column.name else self.id

    @property
    def absent_columns(self) -> list[str]:
        """Columns of the schema that this site does not have."""
        return [name for name, column in self.columns.items() if column.absent]

    @property
    def last_by(self) -> str:
        """The date column in ``row``; empty for the first row."""
        return self.row.removeprefix("last by ") if self.row != "first" else ""

    @property
    def row_used(self) -> str:
        """The rows of an id that training uses, in words."""
        kind, by = ("last", f" by '{self.last_by}'") if self.last_by else ("first", "")
        if self.records_per_unit == 1:
            return f"{kind} labelled row{by}"
        return f"{kind} {self.records_per_unit} labelled rows{by}, clipped as one,"

    def _wrong_here(self) -> Iterator[str]:
        """Yield keys without effect under the format."""
        of_csv = ("encoding", "delimiter")
        of_tables = ("decimal", "thousands", "missing", "columns", "subgroups", "skip", "sheet")
        for key in (*of_csv, *of_tables, "select", "query", "connection"):
            formats = TABLES[:2] if key in of_csv else TABLES
            default = type(self).model_fields[key].default
            if getattr(self, key) != default and self.format not in formats:
                yield key
