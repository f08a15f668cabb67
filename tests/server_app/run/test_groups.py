"""Runs over groups of sites: the journal, the result and the table tell the minority's accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.evaluation import evaluate
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_flower.scenarios.groups import parse_groups, seen_by
from server_app.commands import app
from server_app.in_process.in_process_run import run_in_process
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


def test_personal_models_are_tested_on_what_their_sites_see(tmp_path: Path) -> None:
    """With half the sites' labels shifted by one, no global model can be right for all."""
    terms = TERMS.updated(
        groups="label-shift:3:3", second="kept pull=0", rounds=6,
        local_epochs=3, runs_dir=str(tmp_path),
    )  # fmt: skip
    run_in_process(terms, 6)
    rows = json.loads((tmp_path / "r" / "personal.json").read_text())
    found = {row["model"]: row["accuracy"] for row in rows}
    assert found["personal"] > 0.7
    assert found["global"] < 0.6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": "rotation:5"}, "two or more"),
        ({"groups": "rotation:3:4", "evaluation": "none", "dataset": "heart"}, "no square"),
        ({"dataset": "site"}, "named 'dataset'"),
    ],
)
def test_groups_that_cannot_be_are_refused_before_a_site_is_asked(
    change: dict[str, str], words: str, tmp_path: Path
) -> None:
    grid = ScriptedGrid({})
    terms = TERMS.updated(runs_dir=str(tmp_path), schema_text="heart", **change)
    with pytest.raises(TermsError, match=words):
        run(grid, terms)
    assert grid.asked == []
    assert not (tmp_path / "r").exists()


def test_sizes_of_other_sites_are_refused_before_a_round(tmp_path: Path) -> None:
    with pytest.raises(TermsError, match="7 sites and the run has 6"):
        run_in_process(TERMS.updated(runs_dir=str(tmp_path)), 6)
    assert not (tmp_path / "r").exists()


def test_compare_shows_the_smallest_group(tmp_path: Path) -> None:
    words = "compare --strategies fedavg --clients 7 --rounds 2 --seeds 2 --epsilons inf --jobs 1"
    given = [*words.split(), "--groups", TERMS.simulation.groups, "--out", str(tmp_path)]
    done = CliRunner().invoke(app, given, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert "smallest" in done.output  # a narrow terminal puts "group" on the next line
    content = json.loads((tmp_path / "comparison.json").read_text())["results"]["fedavg"]
    assert np.shape(content["accuracy-minority"]) == (2, 2)
    assert content["accuracy-minority"] == content["accuracy-group-0"]
