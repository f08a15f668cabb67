"""``hdpfl report``: run or comparison as an HTML page, or for an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.errors import DataError
from hdpfl_flower.system.paths import expanded
from hdpfl_tools.coordinator.progress import show_line


def report(
    run: Annotated[
        str,
        typer.Argument(
            help=("The folder of a run, its id under runs-dir, or the folder of a comparison.")
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; default: report.html in that folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing page.")] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write files for TensorBoard; the run is a folder in DIR."
        ),
    ] = None,
    mlflow: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write to the MLflow store in DIR, as experiment hdpfl."),
    ] = None,
) -> None:
    """Write an HTML page about a run: results, figures, sites, terms and versions.

    For the folder of a comparison the page has the results of each strategy and the picture. With
    --tensorboard or --mlflow the command writes the run's terms and the measures of each round
    there; it then writes the page only with --out.
    """
    from hdpfl_tools.coordinator.reports.comparison_page import (
        is_comparison,
        make_comparison_report,
    )
    from hdpfl_tools.coordinator.reports.run_page import make_report
    from server_app.run.resume import run_folder

    if tensorboard is not None or mlflow is not None:
        _to_trackers(run_folder(run), tensorboard, mlflow)
        if out is None:
            return
    folder = expanded(run).absolute()
    if is_comparison(folder):
        page = make_comparison_report(folder)
    else:
        folder = run_folder(run)
        page = make_report(folder)
    path = out or folder / "report.html"
    if path.exists() and not force:
        raise DataError(f"{path} exists already; name another file with --out, or add --force")
    path.write_text(page, encoding="utf-8")
    show_line(str(path))


def _to_trackers(folder: Path, tensorboard: Path | None, mlflow: Path | None) -> None:
    from hdpfl_flower.monitoring.journal import read_journal
    from hdpfl_tools.coordinator.monitoring.tracking import store_in, to_mlflow, to_tensorboard

    events = read_journal(folder / "journal.jsonl")
    if tensorboard is not None:
        written = to_tensorboard(events, folder.name, tensorboard)
        show_line(f"{written}; look at it with: tensorboard --logdir {tensorboard}")
    if mlflow is not None:
        store = store_in(to_mlflow(events, folder.name, mlflow))
        show_line(f"{mlflow}; look at it with: mlflow ui --backend-store-uri {store}")
