"""``hdpfl-site schema``: draft from a file, check, and made-up tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hdpfl_flower.config.named_files import is_path, read_schema
from hdpfl_tools.site.commands.texts.render import text_of
from hdpfl_tools.site.options import check_free, naming, write_file

if TYPE_CHECKING:
    from hdpfl_tools.tables.sources.csv_rows import Form


def schema(  # noqa: PLR0913, PLR0917 - options of a command line
    file: Annotated[
        str,
        typer.Argument(
            help="A schema: FILE.toml or the name of a built-in one. With --to: a table."
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", "--out", help="Draft this schema, FILE.toml, from the site's table."),
    ] = None,
    label: Annotated[str, typer.Option(help="For a draft: the column to predict.")] = "",
    id_: Annotated[
        str, typer.Option("--id", help="For a draft: the column of the protected unit.")
    ] = "",
    delimiter: Annotated[
        str,
        typer.Option(
            help="For a draft: the character between the cells of a CSV. Empty: the command "
            "finds it."
        ),
    ] = "",
    sheet: Annotated[str, typer.Option(help="For a draft: the sheet of a workbook.")] = "",
    select: Annotated[
        str, typer.Option(help="For a draft: a SELECT in the SQL of an SQLite database.")
    ] = "",
    mock: Annotated[
        Path | None, typer.Option(help="Write a made-up table of the schema, FILE.csv.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of a made-up table.", min=1, max=1_000_000)] = 300,
    seed: Annotated[
        int, typer.Option(help="Seed of a made-up table: another seed gives another table.", min=0)
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Check a public schema; with --to, draft one from a table; with --mock, make up a table.

    The check shows the inputs of the model. It reads no record; 'hdpfl-site profile check --terms'
    reads the records by the schema of a run.

    A draft holds the names and types of the table's columns, and a mark where a person must choose.
    The command prints what the records hold, and the lines for the profile, only here: no data
    leave.

    A made-up table is for the rehearsal of a run at ε = 0: it has the types, bounds, categories and
    missing values of the schema.
    """
    if to is not None and mock is not None:
        raise typer.BadParameter("--to and --mock exclude each other")
    if to is not None:
        from hdpfl_tools.tables.sources.csv_rows import Form

        form = Form(delimiter=delimiter, sheet=sheet, select=select)
        _draft(Path(file), to, label, id_, form, force=force)
        return
    if mock is not None:
        _mock(file, mock, rows, seed, force=force)
        return
    from hdpfl_flower.data.schema import Schema

    typer.echo(text_of("schema", file=file, schema=Schema.load(_schema_text(file))))


def _draft(file: Path, to: Path, label: str, id_: str, form: Form, *, force: bool) -> None:
    from hdpfl_tools.tables.schema_draft import draft_schema

    check_free(to, force=force)
    with naming(file):
        draft = draft_schema(file, label, id_, form)
    write_file(to, draft.text.encode(), force=force)
    typer.echo(text_of("draft", draft=draft, to=to))


def _mock(schema: str, to: Path, rows: int, seed: int, *, force: bool) -> None:
    from hdpfl_flower.data.schema import Schema
    from hdpfl_tools.tables.mock_table import mock_table

    check_free(to, force=force)
    write_file(to, mock_table(Schema.load(_schema_text(schema)), rows, seed).encode(), force=force)
    typer.echo(
        f"wrote {to}: {rows} made-up records of no real person; their label follows a made-up "
        "rule, so a score on them says nothing about real records"
    )


def _schema_text(name: str) -> str:
    return read_schema(Path(name)) if is_path(name) else name
