"""``hdpfl exporter``: the runs' series for Prometheus, over HTTP or as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.errors import DataError
from hdpfl_flower.monitoring.prometheus import Address, Exporter, keep_writing, serve_until_ended
from hdpfl_flower.monitoring.series import COORDINATOR_PORT
from hdpfl_flower.system.paths import runs_dir as default_runs_dir
from server_app.monitoring.exporter import NEWEST, RunFollower
from server_app.progress import console

READABLE = 0o644
"""Of a textfile: node_exporter is another user, and nothing in it is private."""


def exporter(
    runs_dir: Annotated[Path | None, typer.Option(help="Default: $HDPFL_HOME/runs.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = (
        COORDINATOR_PORT
    ),
    newest: Annotated[int, typer.Option(help="Runs to show.", min=1)] = NEWEST,
    textfile: Annotated[
        Path | None, typer.Option(help="Write this .prom file once, and listen nowhere.")
    ] = None,
    every: Annotated[
        float, typer.Option(help="With --textfile: again after these seconds; 0: once.", min=0)
    ] = 0.0,
) -> None:
    """Show the newest runs to Prometheus, from their journals.

    Runs in progress and finished ones, for as long as it is up: one process, whatever the number of
    runs. No ε is shown: budgets are the sites' own.
    """
    folder = default_runs_dir(str(runs_dir or ""))
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; name that of the runs with '--runs-dir'")
    exposition = Exporter("coordinator", RunFollower(folder, newest).readings)
    if textfile is not None:
        keep_writing(exposition, textfile, every, mode=READABLE)
        return
    serve_until_ended(
        exposition,
        Address(host, port),
        lambda url: console.print(f"listening at {url}; the runs lie in {folder}", soft_wrap=True),
    )
