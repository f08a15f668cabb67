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
    runs_dir: Annotated[Path | None, typer.Option(help="Default: $HDPFL_HOME/runs.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = (
        COORDINATOR_PORT
    ),
    name: Annotated[
        list[str] | None, typer.Option(help="Name of this machine to be asked by; repeatable.")
    ] = None,
    watch: Annotated[
        list[Path] | None,
        typer.Option(
            help="Show this certificate's end, or the size of this file, such as the SuperLink's "
            "database, and the room left; repeatable."
        ),
    ] = None,
    newest: Annotated[int, typer.Option(help="Runs to show.", min=1)] = NEWEST,
    textfile: Annotated[
        Path | None, typer.Option(help="Write this .prom file once, and listen nowhere.")
    ] = None,
    every: Annotated[
        float, typer.Option(help="With --textfile: again after these seconds; 0: once.", min=0)
    ] = 0.0,
    history: Annotated[
        str, typer.Option(help="Print every round of this run, for promtool, and end.")
    ] = "",
) -> None:
    """Show the newest runs to Prometheus, from their journals.

    Runs in progress and finished ones, for as long as it is up: one process, whatever the number of
    runs. No ε is shown: budgets are the sites' own. To load a run that is over:
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
        raise DataError(f"there is no folder {folder}; name that of the runs with '--runs-dir'")
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
        lambda url: show_line(f"listening at {url}; the runs lie in {folder}"),
    )
