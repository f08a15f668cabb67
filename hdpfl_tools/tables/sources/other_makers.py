"""Tables of other makers' files and of databases.

Each is read whole by a library of the extra ``import``, for the operator, before any run; the
values become texts (``arrow_texts.py``). No error quotes one: messages of a library might.
"""

from __future__ import annotations

import os
import re
import sqlite3
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.system.extras import extra
from hdpfl_tools.tables.sources.arrow_texts import as_column
from hdpfl_tools.tables.sources.csv_rows import Form
from hdpfl_tools.tables.sources.header import TITLES, Wanted, header_name, is_title
from hdpfl_tools.tables.sources.json_lines import JsonRows
from hdpfl_tools.tables.sources.rows import ArrowRows

_NO_VALUE = re.compile(rb"(</f>|<f [^>]*/>)(<v></v>|<v ?/>)?</c>")
_NAMES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"


def _of_columns(names: Sequence[str], columns: Sequence[Sequence[object]], form: Form) -> ArrowRows:
    """Return a pass over columns of Python values."""
    arrays = [as_column(column, form.notation.decimal) for column in columns]

    def batches(places: Sequence[int]) -> Iterator[Any]:
        yield pa.RecordBatch.from_arrays(
            [arrays[place] for place in places], [str(place) for place in places]
        )

    return ArrowRows(names, batches)


def excel_rows(path: Path, form: Form, wanted: Sequence[Wanted] = ()) -> ArrowRows:
    """Return a pass over the sheet of a workbook.

    A formula is the value that Excel stored last; a merged cell holds its value in its first cell.
    """
    with extra("import", "an Excel file"):
        import python_calamine as calamine

    with _errors("a workbook"):
        book = calamine.CalamineWorkbook.from_path(str(path))
        named = [form.sheet] if form.sheet else book.sheet_names
        if form.sheet and form.sheet not in book.sheet_names:
            raise DataError(
                "the workbook has no sheet with the name in 'data.sheet'; correct the name"
            )
        sheets = {name: book.get_sheet_by_name(name) for name in named}
        read = {name: sheet.to_python(skip_empty_area=False) for name, sheet in sheets.items()}
    filled = [
        name for name, rows in read.items() if any(cell != "" for row in rows for cell in row)
    ]
    if len(filled) != 1:
        raise DataError(
            "the workbook has several sheets that hold something; name one in 'data.sheet'"
            if filled
            else "the sheet of the workbook is empty; name another in 'data.sheet'"
        )
    _refuse_formulas(path)
    rows = read[filled[0]][form.skip :]
    merged = sheets[filled[0]].merged_cell_ranges or []
    place = _header_place(rows, wanted)
    header = [_name(cell) for cell in rows[place]]
    body = [row for row in rows[place + 1 :] if any(cell != "" for cell in row)]
    if any(last[0] > form.skip + place for _, last in merged):
        raise DataError(
            "the sheet has merged cells below its header, which stand for several records; unmerge "
            "them in Excel (Home, Merge) and fill each cell"
        )
    used = [number for number, name in enumerate(header) if name]
    columns = [[row[number] for row in body] for number in used]
    return _of_columns([header[number] for number in used], columns, form)


def _refuse_formulas(path: Path) -> None:
    """Refuse a workbook with formulas without stored values."""
    if not zipfile.is_zipfile(path):
        return
    with _errors("a workbook"), zipfile.ZipFile(path) as archive:
        sheets = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
        if any(_NO_VALUE.search(archive.read(name)) for name in sheets):
            raise DataError(
                "the workbook has formulas without values; open it in Excel and save it, or save "
                "only the values"
            )


def _name(cell: object) -> str:
    whole = isinstance(cell, float) and cell.is_integer()
    return header_name(f"{cell:.0f}" if whole else str(cell))


def _header_place(rows: Sequence[Sequence[object]], wanted: Sequence[Wanted]) -> int:
    """Return the row of the header."""
    wanted = [column for column in wanted if not column.absent]
    for place, row in enumerate(rows[:TITLES]):
        names = {_name(cell) for cell in row}
        if wanted and all({*map(header_name, each.names)} & names for each in wanted):
            return place
    width = max(len(row) for row in rows)
    cells = ([str(cell) for cell in row] for row in rows[:TITLES])
    return next((place for place, row in enumerate(cells) if not is_title(row, width)), 0)


def statistics_rows(path: Path, form: Form, wanted: Sequence[Wanted] = ()) -> ArrowRows:
    """Return a pass over a file of SPSS, Stata or SAS.

    Codes count, not their labels; values that the file declares missing are missing.
    """
    del wanted
    with extra("import", "a file of SPSS, Stata or SAS"):
        import pyreadstat

    from hdpfl_tools.tables.sources.file_kinds import kind_of_file

    readers: dict[str, Callable[..., Any]] = {
        "spss": pyreadstat.read_sav,
        "stata": pyreadstat.read_dta,
        "xport": pyreadstat.read_xport,
        "sas": pyreadstat.read_sas7bdat,
    }
    with _errors("a file of statistics"):
        columns, meta = readers[kind_of_file(path)](str(path), output_format="dict")
    names = list(meta.column_names)
    return _of_columns(names, [list(columns[name]) for name in names], form)


def arrow_rows(table: pa.Table, decimal: str) -> ArrowRows:
    """Return a pass over an Arrow table."""

    def batches(places: Sequence[int]) -> Iterator[Any]:
        yield from table.select(list(places)).combine_chunks().to_batches()

    return ArrowRows(table.column_names, batches, decimal)


def sqlite_rows(path: Path, form: Form, wanted: Sequence[Wanted] = ()) -> ArrowRows:
    """Return a pass over an SQLite query or only table."""
    del wanted
    with (
        _errors("an SQLite database"),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection,
    ):
        connection.set_authorizer(_reading_alone)
        select = form.select
        if not select:
            names = [name for (name,) in connection.execute(_NAMES)]
            if len(names) != 1:
                raise DataError(
                    "the database has several tables; write a SELECT in 'data.select', or name "
                    "its tables in 'data.tables' for a 'data.query'"
                )
            name = names[0].replace('"', '""')
            select = f'SELECT * FROM "{name}"'  # noqa: S608 - a name of the site's own database
        cursor = connection.execute(select)
        header, rows = [column[0] for column in cursor.description or ()], cursor.fetchall()
    return _of_columns(header, [*zip(*rows, strict=True)] or [() for _ in header], form)


def _reading_alone(action: int, *_: object) -> int:
    """Authorize statements of SQLite that read, and no others."""
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
    recursive = getattr(sqlite3, "SQLITE_RECURSIVE", 33)
    return sqlite3.SQLITE_OK if action in (*reading, recursive) else sqlite3.SQLITE_DENY


def postgresql_rows(connection: str, form: Form) -> ArrowRows:
    """Return a pass over a read-only query of PostgreSQL.

    Args:
        connection: a connection string of libpq, or ``$NAME`` of an environment variable.
        form: its ``select``.
    """
    with extra("import", "a PostgreSQL database"):
        import psycopg

    if connection.startswith("$"):
        name, connection = connection[1:], os.environ.get(connection[1:], "")
        if not connection:
            raise DataError(f"the environment variable {name} of 'data.connection' is not set")
    said = "a PostgreSQL database: address, user, password file, or the SELECT"
    with _errors(said), psycopg.connect(connection) as opened:
        opened.read_only = True
        opened.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with opened.cursor() as cursor:
            cursor.execute(form.select.encode())
            header = [column.name for column in cursor.description or ()]
            rows = cursor.fetchall()
    return _of_columns(header, [*zip(*rows, strict=True)] or [() for _ in header], form)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Raise a ``DataError`` without text of a library."""
    try:
        yield
    except HDPFLError:
        raise
    except Exception as error:
        if "database is locked" in str(error):
            said = "another program has locked the database; close that program, or copy the file"
        else:
            said = f"the table cannot be read as {what} ({type(error).__name__}); check the table"
        raise DataError(said) from None


READERS: dict[str, Callable[..., ArrowRows | JsonRows]] = {
    "excel": excel_rows,
    "ndjson": JsonRows,
    "sqlite": sqlite_rows,
    **dict.fromkeys(("spss", "stata", "xport", "sas"), statistics_rows),
}
"""Readers of kinds of files."""
