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
        typer.Argument(help="A run's folder or its id under runs-dir; or a comparison's folder."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; default: report.html in its folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a page that exists.")] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write TensorBoard's files; the run is a folder in DIR."),
    ] = None,
    mlflow: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write to MLflow's store in DIR, experiment hdpfl."),
    ] = None,
) -> None:
    """Write an HTML page about a run: results, figures, sites, terms, versions.

    Of a comparison's folder the page has each strategy's results and the picture. With
    --tensorboard or --mlflow a run's terms and the measures of each round are written there
    instead, and the page only with --out.
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
        show_line(f"{written}; to look at it: tensorboard --logdir {tensorboard}")
    if mlflow is not None:
        store = store_in(to_mlflow(events, folder.name, mlflow))
        show_line(f"{mlflow}; to look at it: mlflow ui --backend-store-uri {store}")
