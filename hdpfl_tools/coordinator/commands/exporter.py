"""``hdpfl exporter``: series of runs for Prometheus, by HTTP or file."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.errors import DataError
from hdpfl_flower.monitoring.series import COORDINATOR_PORT
from hdpfl_flower.system.paths import runs_dir as default_runs_dir
from hdpfl_tools.coordinator.monitoring.exporter import NEWEST, RunFollower, readings_of_files
from hdpfl_tools.coordinator.monitoring.exporter import history as history_of
from hdpfl_tools.coordinator.progress import show_line
from hdpfl_tools.shell.prometheus import Address, Exporter, keep_writing, serve_until_ended

READABLE = 0o644
"""File mode of a textfile: public data, read by node_exporter's user."""


def exporter(  # noqa: PLR0913, PLR0917 - options of a command line
    runs_dir: Annotated[
        Path | None, typer.Option(help="The folder of the runs; default: $HDPFL_HOME/runs.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port to listen at; 0: any free port.", min=0, max=65535)
    ] = (COORDINATOR_PORT),
    name: Annotated[
        list[str] | None,
        typer.Option(help="A name by which this machine may be asked; may be repeated."),
    ] = None,
    watch: Annotated[
        list[Path] | None,
        typer.Option(
            help="Show when this certificate ends, or the size of this file (such as the "
            "SuperLink's database) and the free space; may be repeated."
        ),
    ] = None,
    newest: Annotated[int, typer.Option(help="Number of newest runs to show.", min=1)] = NEWEST,
    textfile: Annotated[
        Path | None, typer.Option(help="Write this .prom file once, and do not listen.")
    ] = None,
    every: Annotated[
        float,
        typer.Option(
            help=("With --textfile: write it again every so many seconds; 0: write it once."), min=0
        ),
    ] = 0.0,
    history: Annotated[
        str, typer.Option(help="Print every round of this run for promtool, and end.")
    ] = "",
) -> None:
    """Show the newest runs to Prometheus, from their journals.

    One process shows all runs, in progress and finished, for as long as it is up. It shows no ε,
    because the budgets belong to the sites. To load a finished run, call:
    hdpfl exporter --history RUN > run.om, then promtool tsdb create-blocks-from openmetrics run.om
    DATA.
    """
    folder = default_runs_dir(str(runs_dir or ""))
    if history:
        run = Path(history) if (Path(history) / "journal.jsonl").is_file() else folder / history
        readings = list(history_of(run.absolute() / "journal.jsonl"))
        sys.stdout.write(Exporter("coordinator", lambda: readings).openmetrics().decode())
        return
    if not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}; name the folder of the runs with '--runs-dir'"
        )
    follower = RunFollower(folder, newest)
    watched = [folder, *(watch or ())]
    exposition = Exporter(
        "coordinator", lambda: chain(follower.readings(), readings_of_files(watched))
    )
    if textfile is not None:
        keep_writing(exposition, textfile, every, mode=READABLE)
        return
    serve_until_ended(
        exposition,
        Address(host, port, names=tuple(name or ())),
        lambda url: show_line(f"listening at {url}; the runs are in {folder}"),
    )
