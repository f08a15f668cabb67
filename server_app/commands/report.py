"""``hdpfl report``: a run, or a comparison, as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from server_app.progress import console


def report(
    run: Annotated[
        str,
        typer.Argument(help="A run's folder or its id under runs-dir; or a comparison's folder."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in its folder.")
    ] = None,
) -> None:
    """Write a run, finished or not, as one page: results, figures, sites, terms, versions.

    Of a comparison's folder the page has each strategy's results and the picture.
    """
    from server_app.reports.comparison_page import is_comparison, make_comparison_report
    from server_app.reports.run_page import make_report
    from server_app.run.resume import run_folder

    folder = Path(run).expanduser().absolute()
    if is_comparison(folder):
        page = make_comparison_report(folder)
    else:
        folder = run_folder(run)
        page = make_report(folder)
    path = out or folder / "report.html"
    path.write_text(page, encoding="utf-8")
    console.print(str(path), soft_wrap=True)
