"""Runs over groups of sites: the journal, the result and the table tell the minority's accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.evaluation import evaluate
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from hdpfl_tools.simulation.scenarios.groups import parse_groups, seen_by
from server_app.run.rounds import run
from tests.federation import ScriptedGrid

SIZES = (1, 2, 2, 2)
TERMS = RunConfig().updated(
    strategy="fedavg", rounds=2, epsilons="inf", batch_sizes="32", run_id="r",
    groups="rotation:1:2:2:2", partition="iid", learning_rate=0.5,
)  # fmt: skip


def test_the_journal_and_the_result_hold_every_groups_accuracy(tmp_path: Path) -> None:
    result = run_in_process(TERMS.updated(runs_dir=str(tmp_path)), 7)
    data = load_dataset("digits", "")
    groups = parse_groups(TERMS.simulation.groups, data.task)
    assert data.test is not None
    by_group = [
        evaluate("logreg", data.task, result.arrays, seen_by(data.test, groups, m, data.task))
        for m in range(4)
    ]
    accuracies = [one["accuracy"] for one in by_group]
    events = read_journal(tmp_path / "r" / "journal.jsonl")
    told = [event["metrics"] for event in events if event["event"] == "round"][-1]
    assert told == json.loads((tmp_path / "r" / "result.json").read_text())["metrics"]
    assert told["accuracy"] == pytest.approx(np.average(accuracies, weights=SIZES))
    assert told["accuracy-minority"] == accuracies[0]
    assert [told[f"accuracy-group-{m}"] for m in range(4)] == accuracies
    assert len(set(accuracies)) > 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": "rotation:5"}, "two or more"),
        ({"groups": "rotation:3:4", "evaluation": "none", "dataset": "heart"}, "not square"),
        ({"dataset": "site"}, "named 'dataset'"),
    ],
)
def test_bad_groups_are_refused_first(change: dict[str, str], words: str, tmp_path: Path) -> None:
    grid = ScriptedGrid({})
    terms = TERMS.updated(runs_dir=str(tmp_path), schema_text="heart", **change)
    with pytest.raises(TermsError, match=words):
        run(grid, terms)
    assert grid.asked == []
    assert not (tmp_path / "r").exists()
