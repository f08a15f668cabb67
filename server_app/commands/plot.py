"""``hdpfl plot``: draw a run from its journal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.errors import DataError
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.system.paths import runs_dir
from server_app.plots import plot_run
from server_app.progress import console


def plot(
    run: Annotated[str, typer.Argument(help="A run's folder, or its id under runs-dir.")],
    out: Annotated[
        Path | None, typer.Option(help="The PNG; default: run.png in its folder.")
    ] = None,
) -> None:
    """Draw a run, finished or not: its metrics and the sites' weights by round."""
    from server_app.reports.comparison_page import is_comparison

    folder = Path(run) if (Path(run) / "journal.jsonl").is_file() else runs_dir() / run
    if is_comparison(Path(run)) and not (folder / "journal.jsonl").is_file():
        raise DataError(
            f"{run} holds a comparison, whose picture is comparison.png in it; see: hdpfl report "
            f"{run}"
        )
    path = out or folder / "run.png"
    plot_run(read_journal(folder / "journal.jsonl"), path)
    console.print(str(path), soft_wrap=True)
