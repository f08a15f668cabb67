"""``hdpfl report``: a run as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server_app.progress import console


def report(
    run: Annotated[str, typer.Argument(help="A run's folder, or its id under runs-dir.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in its folder.")
    ] = None,
) -> None:
    """Write a run, finished or not, as one page: results, figures, sites, terms, versions."""
    from server_app.reports.run_page import write_report
    from server_app.run.resume import run_folder

    folder = run_folder(run)
    path = out or folder / "report.html"
    write_report(folder, path)
    console.print(str(path), soft_wrap=True)
