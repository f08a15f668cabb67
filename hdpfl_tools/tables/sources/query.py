"""A site's own query, held to the promise of ε.

The query stands in the site's private profile; no text of a server is ever SQL. DuckDB gets tables
in memory and may reach nothing else: no file, no network, no extension, no variable of Python, and
no statement but one SELECT; its configuration is locked.

ε is of two exports that differ in one unit. A query that lets a unit change the rows of another one
(a column centred by the mean of all, a rank, a LIMIT) would break it: it is run again without some
units, and each other unit must have the very same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hdpfl_flower.config.data_source import DataSource, QueryTable
from hdpfl_flower.data.columns import Notation
from hdpfl_flower.errors import DataError
from hdpfl_flower.system.extras import extra
from hdpfl_tools.tables.sources.arrow_texts import as_bytes
from hdpfl_tools.tables.sources.csv_rows import Form
from hdpfl_tools.tables.sources.file_kinds import kind_of_file
from hdpfl_tools.tables.sources.header import header_name
from hdpfl_tools.tables.sources.json_lines import json_table
from hdpfl_tools.tables.sources.open_rows import open_rows
from hdpfl_tools.tables.sources.other_makers import arrow_rows, postgresql_rows
from hdpfl_tools.tables.sources.rows import ArrowRows

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NO_UNIT = "-"
"""``id`` of a table without rows of units."""
SETTINGS = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "threads": "1",  # the order of rows, and of sums, is then that of the tables
}
"""Settings of the engine; locked before the query runs."""
_UNIT = "hdpfl unit"
_RANDOM, _SINGLE = 20, 3
_OF_THE_DAY = re.compile(
    r"\b(now|today|current_date|current_timestamp|current_time|localtime(stamp)?|transaction_"
    r"timestamp|get_current_time(stamp)?)\b",
    re.IGNORECASE,
)


def query_rows(source: DataSource) -> ArrowRows:
    """Return a pass over the result of ``source.query``.

    Raises:
        DataError: a table cannot be read; the query is no single SELECT, fails, gives no id or two
            columns of one name; or it lets a unit change the rows of others.
        InstallationError: DuckDB is not installed.
    """
    with extra("import", "a query over several tables"):
        import duckdb

    if _OF_THE_DAY.search(source.query):
        raise DataError(
            "'data.query' reads today's date or the time: the records would change by themselves; "
            "write a fixed date"
        )
    with closing(duckdb.connect(config=dict(SETTINGS))) as connection:
        units = {name: _load(connection, name, table, source) for name, table in tables_of(source)}
        connection.execute("SET lock_configuration = true")
        _check_statement(connection, source.query)
        result = _run(connection, source.query)
        _check_columns(result, source)
        check_promise(connection, source, units, result)
    return arrow_rows(result, source.decimal)


def tables_of(source: DataSource) -> list[tuple[str, QueryTable]]:
    """Return the tables of ``[data.tables]`` with their names."""
    return [*source.tables.items()]


def _load(connection: DuckDBPyConnection, name: str, table: QueryTable, source: DataSource) -> bool:
    """Load a table with units; return whether it has any."""
    try:
        content = _content(table, source)
        connection.register("hdpfl_read", content)
        columns = content.column_names
        unit = table.id or (source.own_column if source.own_column in columns else "")
        if not unit:
            raise DataError(
                "the unit of its rows is not known; name the column, or an expression of its "
                f"columns, in 'data.tables.{name}.id'; write \"-\" if no row belongs to a person"
            )
        expression = _quoted(unit) if unit in columns else unit
        of_row = "NULL" if unit == NO_UNIT else f"CAST(({expression}) AS VARCHAR)"
        with _said("'data.tables." + name + ".id' is not a column or an expression of its columns"):
            select = f'SELECT *, {of_row} AS "{_UNIT}" FROM hdpfl_read'  # noqa: S608 - the site's own
            _check_statement(connection, select)
            connection.execute(f"CREATE TABLE {_quoted(name)} AS {select}")
        connection.unregister("hdpfl_read")
    except DataError as error:
        raise DataError(f"'data.tables.{name}': {error}") from None
    return unit != NO_UNIT


def _content(table: QueryTable, source: DataSource) -> pa.Table:
    """Return a table of texts; of Parquet with the types that it declares.

    No type depends on the records: the promise is tried on the table as it is here.
    """
    form = Form(table.encoding, table.delimiter, Notation(), table.sheet, table.select, table.skip)
    if table.connection:
        rows: Any = postgresql_rows(table.connection, form)
    elif (kind := kind_of_file(table.path)) == "ndjson":
        return json_table(table.path, form)
    elif kind in ("parquet", "parts"):
        import pyarrow.parquet as pq

        files = sorted(table.path.rglob("*.parquet")) if kind == "parts" else [table.path]
        return pa.concat_tables([pq.read_table(file) for file in files])
    else:
        rows = open_rows(table.path, "table", form)
    del source
    # Arrow's names are UTF-8: bytes that are none get the mark that they have in cells.
    names = [
        header_name(name).encode(errors="surrogateescape").decode(errors="replace")
        for name in rows.header
    ]
    places = [place for place, name in enumerate(names) if name]
    batches = [
        pa.table([_as_text(column) for column in batch.columns], [names[place] for place in places])
        for batch in rows.batches(places)
    ]
    empty = pa.table([pa.array([], pa.large_utf8()) for _ in places], [names[p] for p in places])
    return pa.concat_tables([empty, *batches])


def _as_text(column: Any) -> Any:
    """Return bytes as text, with marks for invalid UTF-8."""
    try:
        return column.cast(pa.large_utf8())
    except pa.ArrowInvalid:
        texts = (
            None if cell is None else cell.decode(errors="replace") for cell in column.to_pylist()
        )
        return pa.array(texts, pa.large_utf8())


def _check_statement(connection: DuckDBPyConnection, query: str) -> None:
    with _said("'data.query' cannot be parsed by DuckDB"):
        statements = [each.type.name for each in connection.extract_statements(query)]
    if statements != ["SELECT"]:
        raise DataError(
            "'data.query' must be one SELECT and nothing else; in a PIVOT write the values: IN (…)"
        )


def _run(connection: DuckDBPyConnection, query: str) -> pa.Table:
    with _said("'data.query' fails in DuckDB: try it in the shell of DuckDB on these files"):
        return connection.sql(query).to_arrow_table()


@contextmanager
def _said(fault: str) -> Iterator[None]:
    """Raise a ``DataError`` without the text of DuckDB."""
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException, RuntimeError) as error:
        raise DataError(f"{fault} ({type(error).__name__})") from None


def _check_columns(result: pa.Table, source: DataSource) -> None:
    names = [header_name(name) for name in result.column_names]
    if source.own_column not in names:
        raise DataError(
            "'data.query' gives no column of the unit ('data.id'); select the column "
            "under that name"
        )
    if len({*names}) < len(names):
        raise DataError("'data.query' gives two columns with one name; rename one with AS")


def check_promise(
    connection: DuckDBPyConnection, source: DataSource, units: dict[str, bool], result: pa.Table
) -> None:
    """Refuse a query by which a unit changes the rows of others.

    Tried are some units alone, the units with the least and the greatest value of each column
    together, and every second unit.

    Args:
        connection: with the tables.
        source: of the query.
        units: whether a table has rows of units, by name.
        result: of the query on all of them.

    Raises:
        DataError: rows of units that were not left out differ; the columns are named.
    """
    with_units = [name for name, has_units in units.items() if has_units]
    if not with_units:
        raise DataError("no table of 'data.tables' has rows of units; name one in its 'id'")
    names = sorted(
        {
            name
            for table in with_units
            for (name,) in connection.execute(
                f'SELECT DISTINCT "{_UNIT}" FROM {_quoted(table)} WHERE "{_UNIT}" IS NOT NULL'  # noqa: S608
            ).fetchall()
        }
    )
    rows = _rows_by_unit(result, source)
    draw = np.random.default_rng(len(names))
    chosen = [names[place] for place in draw.permutation(len(names))[:_RANDOM]]
    groups = [[], *([name] for name in chosen[:_SINGLE]), [*chosen, *names[:1], *names[-1:]]]
    groups += [names[::2], names[1::2]]
    extremes = _extremes(connection, with_units)
    for left_out in [*groups, extremes]:
        less = _rows_by_unit(_without(connection, source, with_units, left_out), source)
        _compare(rows, less, len(left_out), result.column_names, source)


def _extremes(connection: DuckDBPyConnection, tables: Sequence[str]) -> list[str]:
    """Return units with extreme values of each column."""
    import duckdb

    extremes: dict[str, None] = {}
    for table in tables:
        columns = connection.execute(f"DESCRIBE {_quoted(table)}").fetchall()
        for name, *_ in columns:
            column = _quoted(name)
            number = f"coalesce(TRY_CAST({column} AS DOUBLE), 0)"
            for order in (number, f"{number} DESC", f"CAST({column} AS VARCHAR)"):
                query = (
                    f'SELECT "{_UNIT}" FROM {_quoted(table)} WHERE "{_UNIT}" IS NOT NULL '  # noqa: S608
                    f"ORDER BY {order} LIMIT 1"
                )
                try:
                    units = connection.execute(query).fetchall()
                except duckdb.Error:  # A structure has no number.
                    continue
                extremes.update((unit, None) for (unit,) in units)
    return [*extremes]


def _without(
    connection: DuckDBPyConnection,
    source: DataSource,
    tables: Sequence[str],
    left_out: Sequence[str],
) -> pa.Table:
    """Return the result of the query on the tables without some units."""
    connection.register("hdpfl_out", pa.table({"unit": pa.array(left_out, pa.utf8())}))
    renamed = {table: f"hdpfl whole {number}" for number, table in enumerate(tables)}
    try:
        for table, whole in renamed.items():
            connection.execute(f"ALTER TABLE {_quoted(table)} RENAME TO {_quoted(whole)}")
            connection.execute(
                f'CREATE TABLE {_quoted(table)} AS SELECT * FROM {_quoted(whole)} WHERE "{_UNIT}" '  # noqa: S608
                f'IS NULL OR "{_UNIT}" NOT IN (SELECT unit FROM hdpfl_out)'
            )
        return _run(connection, source.query)
    finally:
        for table, whole in renamed.items():
            connection.execute(f"DROP TABLE IF EXISTS {_quoted(table)}")
            connection.execute(f"ALTER TABLE {_quoted(whole)} RENAME TO {_quoted(table)}")
        connection.unregister("hdpfl_out")


def _rows_by_unit(result: pa.Table, source: DataSource) -> dict[bytes, list[tuple[Any, ...]]]:
    """Return the rows of each unit of a result, in their order."""
    columns = [as_bytes(column.combine_chunks()).to_pylist() for column in result.columns]
    place = [header_name(name) for name in result.column_names].index(source.own_column)
    rows: dict[bytes, list[tuple[Any, ...]]] = {}
    for row in zip(*columns, strict=True):
        rows.setdefault(row[place] or b"", []).append(row)
    return rows


def _compare(
    rows: dict[bytes, list[tuple[Any, ...]]],
    less: dict[bytes, list[tuple[Any, ...]]],
    left_out: int,
    names: Sequence[str],
    source: DataSource,
) -> None:
    """Refuse a result without some units in which others have other rows."""
    gone = len(rows.keys() - less.keys())
    remedy = (
        "so a person changes the records of others, which ε does not cover: each row of the "
        "result must come only from rows of its own unit"
    )
    if gone > left_out or less.keys() - rows.keys():
        raise DataError(
            "'data.query' gives other units if some units are left out of its tables (a LIMIT, a "
            f"rank, a threshold of counts?), {remedy}"
        )
    if not left_out and rows != less:
        raise DataError(
            "'data.query' gives other rows each time (random()?); remove what is random"
        )
    differing: dict[str, None] = {}
    for unit, of_unit in less.items():
        if rows[unit] == of_unit:
            continue
        if sorted(rows[unit], key=repr) == sorted(of_unit, key=repr):
            raise DataError(
                "'data.query' gives the rows of a unit in an order that depends on others; add an "
                f"ORDER BY that tells all rows of '{source.own_column}' apart"
            )
        pairs = zip(names, zip(*rows[unit], strict=True), zip(*of_unit, strict=True), strict=True)
        differing |= {name: None for name, before, after in pairs if before != after}
    if differing:
        listed = ", ".join(f"'{name}'" for name in differing)
        raise DataError(
            f"'data.query': column {listed} of a unit changes when others are left out (a mean, a "
            f"rank or a scale of all rows?), {remedy}"
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
