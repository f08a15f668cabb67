"""``hdpfl metrics``: the numbers of a run, for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.monitoring.prometheus import Exporter
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.paths import runs_dir
from hdpfl_flower.system.terminal import new_app
from server_app.commands.exporter import READABLE
from server_app.monitoring.exporter import history
from server_app.monitoring.run_series import tally
from server_app.progress import console

app = new_app("The numbers of a run, for Prometheus.")


@app.callback()
def _group() -> None:
    """Keep ``export`` a command of its own; typer would make the only one the whole."""


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run's folder, or its id under runs-dir.")],
    openmetrics: Annotated[
        bool, typer.Option("--openmetrics", help="Every round with its time, for promtool.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; else the terminal.")] = None,
) -> None:
    """Print what 'hdpfl exporter' shows of a run: the last values, or those of every round.

    To load a run that is over into Prometheus: hdpfl metrics export RUN --openmetrics --out run.om,
    then promtool tsdb create-blocks-from openmetrics run.om DATA.
    """
    folder = Path(run) if (Path(run) / "journal.jsonl").is_file() else runs_dir() / run
    path = folder.absolute() / "journal.jsonl"
    if openmetrics:
        readings = list(history(path))
        text = Exporter("coordinator", lambda: readings).openmetrics()
    else:
        now = tally(path.parent.name, read_journal(path))
        text = Exporter("coordinator", now.readings).text()
    if out is None:
        sys.stdout.write(text.decode())
    else:
        replace_file(out, text, mode=READABLE)
        console.print(f"wrote {out}", soft_wrap=True)
