"""``hdpfl report --tensorboard``, ``--mlflow``: a journal's rounds as a tracker reads them back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.coordinator.monitoring.tracking import (
    series_of,
    store_in,
    terms_of,
    to_mlflow,
    to_tensorboard,
)

AT = "2026-01-02T03:04:05.000+00:00"


@pytest.fixture(name="run")
def run_of_two_rounds(tmp_path: Path) -> Path:
    folder = tmp_path / "run-7"
    folder.mkdir()
    rounds = [
        {"event": "round", "at": AT, "round": i, "asked": ["a", "b"], "accepted": ["a"],
         "rejections": {},
         "metrics": {"accuracy": 0.25 * i, "loss": float("nan")}, "seconds": 0.5, "bytes_up": 8}
        for i in (1, 2)
    ]  # fmt: skip
    began = {"event": "run-started", "at": AT, "format": 1, "terms": {"rounds": 2, "model": "x"}}
    lines = map(json.dumps, [began, *rounds])
    (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_the_numbers_of_a_round_have_its_time_and_are_finite(run: Path) -> None:
    events = read_journal(run / "journal.jsonl")
    numbers, (second, seconds, last) = series_of(events)
    assert numbers[0] == 1
    assert (second, seconds) == (2, 1767323045.0)
    assert last == {
        "accuracy": 0.5, "sites/accepted": 1, "sites/asked": 2, "round/seconds": 0.5,
        "round/bytes_up": 8,
    }  # fmt: skip
    assert terms_of(events) == {"rounds": 2, "model": "x"}


def test_tensorboard_reads_every_round(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    own = to_tensorboard(read_journal(run / "journal.jsonl"), "run-7", tmp_path / "tb")
    found = EventAccumulator(str(own))
    found.Reload()
    scalars = [(s.step, s.value, s.wall_time) for s in found.Scalars("accuracy")]
    assert scalars == [(1, 0.25, 1767323045.0), (2, 0.5, 1767323045.0)]


def test_mlflow_reads_every_round(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    folder = to_mlflow(read_journal(run / "journal.jsonl"), "run-7", tmp_path / "ml")
    client = MlflowClient(store_in(folder))
    (found,) = client.search_runs([client.get_experiment_by_name("hdpfl").experiment_id])
    assert found.data.params == {"rounds": "2", "model": "x"}
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]
