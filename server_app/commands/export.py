"""``hdpfl export``: a run's numbers, for an experiment tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.system.paths import runs_dir
from server_app.progress import console


def export(
    run: Annotated[str, typer.Argument(help="A run's folder, or its id under runs-dir.")],
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write TensorBoard's files; the run is a folder in DIR."),
    ] = None,
    mlflow: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write to MLflow's store in DIR, experiment hdpfl."),
    ] = None,
) -> None:
    """Write the measures of every round, and the terms, to TensorBoard's or MLflow's files."""
    from server_app.monitoring.tracking import store_in, to_mlflow, to_tensorboard

    folder = Path(run) if (Path(run) / "journal.jsonl").is_file() else runs_dir() / run
    events = read_journal(folder.absolute() / "journal.jsonl")
    if tensorboard is None and mlflow is None:
        raise typer.BadParameter("name --tensorboard DIR, --mlflow DIR, or both")
    name = folder.absolute().name
    if tensorboard is not None:
        own = to_tensorboard(events, name, tensorboard)
        console.print(f"{own}; to look at it: tensorboard --logdir {tensorboard}", soft_wrap=True)
    if mlflow is not None:
        own = to_mlflow(events, name, mlflow)
        shown = f"mlflow ui --backend-store-uri {store_in(own)}"
        console.print(f"{own}; to look at it: {shown}", soft_wrap=True)
