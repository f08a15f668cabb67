"""Export of a run's journal to TensorBoard or MLflow.

The export has the journal's facts of every round: measures, counts, seconds and bytes; no term that
holds an ε of a site, for none is in the journal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hdpfl_flower.monitoring.journal import Event, finished_rounds
from hdpfl_flower.system.extras import extra

_COUNTS = ("accepted", "asked")
_AT_A_TIME = 100
"""Parameters in a call of MLflow's, at most."""
_NUMBERS = ("seconds", "bytes_down", "bytes_up")


def series_of(events: list[Event]) -> Iterator[tuple[int, float, Mapping[str, float]]]:
    """Yield each round's number, time (seconds since 1970) and named numbers.

    Measures have their own names; counts of sites are ``sites/accepted`` and ``sites/asked``,
    seconds and bytes ``round/seconds`` and so on. Numbers that are not finite are left out.
    """
    for event in finished_rounds(events):
        numbers: dict[str, Any] = dict(event.get("metrics", {}))
        numbers |= {f"sites/{name}": len(event[name]) for name in _COUNTS if name in event}
        numbers |= {f"round/{name}": event[name] for name in _NUMBERS if name in event}
        finite = {name: float(v) for name, v in numbers.items() if math.isfinite(float(v))}
        yield int(event["round"]), datetime.fromisoformat(event["at"]).timestamp(), finite


def terms_of(events: list[Event]) -> dict[str, Any]:
    """Return the terms that the run began with."""
    began = [event for event in events if event["event"] == "run-started"]
    terms: dict[str, Any] = began[-1].get("terms", {}) if began else {}
    return terms


def to_tensorboard(events: list[Event], run_id: str, folder: Path) -> Path:
    """Write TensorBoard's event file in ``folder/run_id``; return that folder.

    Raises:
        InstallationError: tensorboard is not installed.
    """
    with extra("tensorboard", "'hdpfl report --tensorboard'"):
        import tensorboard  # noqa: F401 - torch names another library where it is missing
        from torch.utils.tensorboard import SummaryWriter
    run_folder = folder / run_id
    with SummaryWriter(log_dir=str(run_folder)) as writer:
        for number, seconds, numbers in series_of(events):
            for name, value in numbers.items():
                writer.add_scalar(name, value, number, walltime=seconds)
        text = "\n".join(f"    {key} = {value!r}" for key, value in terms_of(events).items())
        writer.add_text("terms", text)
    return run_folder


def store_in(folder: Path) -> str:
    """Return the URI of MLflow's SQLite store in ``folder``."""
    return f"sqlite:///{folder.absolute()}/mlflow.db"


def to_mlflow(events: list[Event], run_id: str, folder: Path) -> Path:
    """Write a run to MLflow's store in ``folder``, experiment ``hdpfl``; return the folder.

    A run of the same name is added: MLflow's runs have ids of their own.

    Raises:
        InstallationError: mlflow is not installed.
    """
    with extra("mlflow", "'hdpfl report --mlflow'"):
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    folder.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=store_in(folder))
    if experiment := client.get_experiment_by_name("hdpfl"):
        number = experiment.experiment_id
    else:
        number = client.create_experiment("hdpfl", (folder.absolute() / "artifacts").as_uri())
    run = client.create_run(number, run_name=run_id).info.run_id
    params = [Param(key, str(value)[:500]) for key, value in terms_of(events).items()]
    for start in range(0, len(params), _AT_A_TIME):
        client.log_batch(run, params=params[start : start + _AT_A_TIME])
    for step, seconds, numbers in series_of(events):
        time = round(1000 * seconds)
        metrics = [Metric(name, value, time, step) for name, value in numbers.items()]
        client.log_batch(run, metrics=metrics)
    client.set_terminated(run)
    return folder
