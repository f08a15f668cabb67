"""``hdpfl bench``: the natural federations, where records lie at sites of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hdpfl_flower.data.federations.catalog import NATURAL
from hdpfl_flower.data.federations.sizes import Sizes, sizes_of
from hdpfl_flower.errors import HDPFLError
from server_app.commands.reproduce import conduct, items
from server_app.progress import console

DRAWN = {
    "robust-hdp-distributions": "MNIST over 20 clients, the ε of Dist1 to Dist9",
    "robust-hdp-label-skew": "MNIST in 8 shards of one label a client, 60 clients, Dist1 to Dist9",
    "drift": "MNIST over 20 clients, iid and at most 2 labels a client, Dist1 to Dist9",
    "which-rule": "MNIST iid, at most 3 or 2 labels a client, Dirichlet .3, quarter turns, a label "
    "held by one client, 4 to 60 clients, unequal batches and steps, Dist2, Dist4 and Dist6",
    "r-dpcfl-mnist-rotation": "MNIST turned by quarters, in groups of 3, 6, 6 and 6 clients",
    "r-dpcfl-mnist-label": "MNIST with other labels in each of these groups",
    "pfa-mixgauss": "MNIST in 10 shards a client, the ε of MixGauss1 to 4",
}
"""Study → the federations that it draws from a data set of one place."""


def bench(  # noqa: PLR0913, PLR0917 - options of a command line
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Federations to run; none: they are listed.", show_default=False),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the federations and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the list, or results.json, as JSON.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="At every ε of the leaderboard.")] = False,
    seeds: Annotated[int, typer.Option(help="Runs of each cell; 0: three.", min=0)] = 0,
    strategies: Annotated[
        str, typer.Option(help="Rules to run, with commas between.", show_default=False)
    ] = "",
    data_dir: Annotated[
        str, typer.Option(help="Folder of the data sets heart and school.", show_default=False)
    ] = "",
    jobs: Annotated[int, typer.Option(help="Runs at a time; 0: a core each.", min=0)] = 0,
    minutes: Annotated[
        float, typer.Option(help="Begin no further column after these; 0: no end.", min=0)
    ] = 0,
    fewest_records: Annotated[
        int, typer.Option(help="Sites with fewer for training take no part.", min=0)
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for runs and results; a second call continues in it.", show_default=False
        ),
    ] = None,
) -> None:
    """List the natural federations, or compare the rules on some of them.

    Their records come from packages of the extra 'bench'. Rates are searched on training records
    alone, and every run's ledgers are recounted; finished runs are kept in the folder and reused.
    """
    if names and not list_:
        from studies.framework.study import Options
        from studies.natural.study import LEADERBOARD

        options = Options(
            full=full,
            seeds=seeds,
            strategies=items(strategies),
            columns=tuple(names),
            data_dir=data_dir,
            processes=jobs,
            minutes=minutes,
            fewest_records=fewest_records,
        )
        conduct(LEADERBOARD, options, out, as_json)
        return
    rows = [_facts(name, data_dir) for name in NATURAL]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    table = Table(title="natural federations: hdpfl bench NAME")
    for column in ("name", "sites", "records a site", "constant"):
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    console.print(
        "records a site: least / median / most; constant: accuracy of the larger class, mean "
        "squared error of the mean, or log loss of the share of events in each interval"
    )
    for row in rows:
        control = "; a negative control, no signal is expected" if row["control"] else ""
        words = f"{row['predicts']}; a record is {row['unit']}{control}"
        words += f". {row['source']}. Licence: {row['licence']}"
        console.print(f"{row['name']}: {words}", soft_wrap=True)
        if why := row.get("missing"):
            console.print(f"{row['name']}: {why}", soft_wrap=True, markup=False)
    drawn = Table(title="drawn federations: hdpfl reproduce NAME")
    for column in ("name", "what is drawn"):
        drawn.add_column(column)
    for name, what in DRAWN.items():
        drawn.add_row(name, what)
    console.print(drawn)


def _facts(name: str, data_dir: str) -> dict[str, object]:
    one = NATURAL[name]
    facts: dict[str, object] = {
        "name": name,
        "predicts": one.what,
        "sites-are": one.site_is,
        "unit": one.unit,
        "package": f"{one.package}=={one.version}" if one.package else "",
        "files": "" if one.package else one.file,
        "source": one.source,
        "licence": one.licence,
        "control": one.control,
    }
    try:
        found = sizes_of(name, data_dir)
    except HDPFLError as reason:
        return {**facts, "missing": str(reason)}
    return {**facts, **_as_facts(found)}


def _as_facts(found: Sizes) -> dict[str, object]:
    return {
        "sites": found.sites,
        "records": found.records,
        "least": found.least,
        "median": found.median,
        "most": found.most,
        "constant": found.constant,
        "measure": found.measure,
        "constant-loss": found.loss,
    }


def _cells(row: dict[str, object]) -> list[str]:
    sizes, constant, sites = "–", "–", str(row["sites-are"])
    if "missing" not in row:
        sizes = f"{row['least']} / {row['median']:g} / {row['most']}"
        words = {"accuracy": "", "mse": "MSE ", "loss": "log loss "}
        constant = f"{words[str(row['measure'])]}{row['constant']:.{_digits(row)}f}"
        sites = f"{row['sites']} {sites}"
    return [str(row["name"]), sites, sizes, constant]


def _digits(row: dict[str, object]) -> int:
    return 5 if row["measure"] == "mse" else 3
