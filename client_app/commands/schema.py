"""``hdpfl-site schema``: draft from a file, check, and made-up tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_app.commands.options import check_free, naming, write_file
from hdpfl_flower.config.named_files import is_path, read_schema
from hdpfl_flower.system.printable import printable
from hdpfl_flower.system.terminal import new_app

app = new_app("The public schema of a table: draft one, check one, mock a table of one.")

PRIVATE = "what the records hold: for your eyes alone, and none of it is in the file"
WARNING = (
    "warning: choose bounds, categories and classes from public knowledge (a guideline, a "
    "codebook), never from the lines above: the schema is sent to every site, and ε does not cover "
    "it"
)


@app.command()
def draft(
    file: Annotated[Path, typer.Argument(help="The site's own CSV, with a header.")],
    out: Annotated[Path, typer.Option("--out", help="The schema to write, FILE.toml.")],
    label: Annotated[str, typer.Option(help="Name of the column to predict.")] = "",
    id_: Annotated[str, typer.Option("--id", help="Column of the protected unit.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Propose a schema from the site's own CSV; no data leave the site.

    The file holds names and types of columns, and a mark where a person must choose. What the
    records hold, and the lines for the profile, are shown here alone.
    """
    from hdpfl_flower.data.schema_draft import draft_schema

    check_free(out, force=force)
    with naming(file):
        made = draft_schema(file, label, id_)
    write_file(out, made.text.encode(), force=force)
    typer.echo(PRIVATE)
    for line in made.notes:
        typer.echo(printable(f"  {line}"))
    typer.echo(WARNING)
    typer.echo("\nfor the profile, as far as it can be seen:\n")
    for line in made.profile.splitlines():
        typer.echo(printable(line))
    typer.echo(
        f"\nwrote {out}: read it before it leaves, its names are the file's first line; choose, "
        f"then: hdpfl-site schema check {out}"
    )


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A schema, FILE.toml.")],
) -> None:
    """Check that a schema is complete and consistent; show the model's inputs.

    No record is read; 'hdpfl-site profile check --terms' reads them by the schema of a run.
    """
    from hdpfl_flower.data.schema import NumberColumn, Schema

    schema = Schema.parse(read_schema(file))
    label = schema.label
    kind = f"{len(label.classes)} classes" if label.classes else "a number"
    if label.event is not None:
        kind = f"a time in {len(label.edges)} intervals, with the event in '{label.event.column}'"
    typer.echo(
        printable(
            f"ok       {len(schema.columns)} columns, {len(schema.feature_names)} features; the "
            f"label '{label.column}' is {kind}"
        )
    )
    unit = (
        f"all records of one value of '{schema.id}', one of which is used: the first with a label, "
        "or as a site's 'data.row' and 'records-per-unit' say"
        if schema.id
        else "one record; name 'id' where a person may have more than one"
    )
    typer.echo(printable(f"ok       protected unit: {unit}"))
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            low, high = column.bounds
            said = f"number from {low:g} to {high:g}; missing: {column.fill_value:g}"
        else:
            said = f"{len(column.categories)} categories; missing: {column.fill or 'all zeros'}"
        typer.echo(printable(f"ok       '{column.name}': {said}"))
    typer.echo(printable(f'ok       in the terms of a run: schema = "{file}"'))


@app.command()
def mock(
    schema: Annotated[str, typer.Argument(help="A schema, FILE.toml or a built-in one.")],
    to: Annotated[Path, typer.Option("--to", "--out", help="The table to write, FILE.csv.")],
    rows: Annotated[int, typer.Option(help="Records.", min=1, max=1_000_000)] = 300,
    seed: Annotated[int, typer.Option(help="Another seed is another table.", min=0)] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Make up a table from a schema alone, to rehearse with; ε = 0.

    Types, bounds, categories and missing values are the schema's; no record is read.
    """
    from hdpfl_flower.data.own_data.mock_table import mock_table
    from hdpfl_flower.data.schema import Schema

    check_free(to, force=force)
    text = read_schema(Path(schema)) if is_path(schema) else schema
    write_file(to, mock_table(Schema.load(text), rows, seed).encode(), force=force)
    typer.echo(
        f"wrote {to}: {rows} made-up records, of no person; their label follows a made-up rule, so "
        "no score on them says anything of real ones"
    )
