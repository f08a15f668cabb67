"""A run whose budgets are used up is complete; who is left out stands in its journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import read_journal
from server_app.in_process.in_process_run import run_in_process
from server_app.run.rounds import run
from tests.federation import ScriptedGrid
from tests.strategies.core.test_budgets import noisy


@pytest.mark.usefixtures("guessed_noise")
def test_a_run_ends_complete_when_its_participations_are_used(tmp_path: Path) -> None:
    """Real simulated sites, and the counts of the server and of the ledgers agree."""
    config = {"rounds": 30, "participations": 2, "fraction": 0.5, "strategy": "fedavg"}
    terms = RunConfig.parse({**config, "runs-dir": str(tmp_path), "run-id": "capped"})
    result = run_in_process(terms, 4)
    events = read_journal(tmp_path / "capped" / "journal.jsonl")
    assert [len(event["accepted"]) for event in result.rounds] == [2] * len(result.rounds)
    assert sum(len(event["accepted"]) for event in result.rounds) == 8
    assert events[-3]["event"] == "budgets-used-up"
    assert events[-3]["after_round"] == len(result.rounds)
    assert events[-3]["reason"] == "the sites' budgets are used up"
    assert events[-2]["event"] == "measures"
    assert (events[-1]["event"], events[-1]["status"]) == ("run-finished", "completed")


@pytest.mark.usefixtures("guessed_noise")
@pytest.mark.slow
def test_a_run_of_a_common_noise_ends_when_the_last_site_has_left(tmp_path: Path) -> None:
    config = {"rounds": 30, "noise-multiplier": 2.0, "epsilons": "1.2,1.6", "batch-sizes": "64"}
    terms = RunConfig.parse(
        {**config, "runs-dir": str(tmp_path), "run-id": "early", "strategy": "fedavg"}
    )
    result = run_in_process(terms, 2)
    accepted = [event["accepted"] for event in result.rounds]
    assert 1 < len(accepted) < 30
    assert accepted[0] == ["0", "1"]
    assert accepted[-2] == ["1"]
    assert accepted[-1] == []
    events = read_journal(tmp_path / "early" / "journal.jsonl")
    assert [event["event"] for event in events[-3:]] == [
        "budgets-used-up",
        "measures",
        "run-finished",
    ]
    assert events[-1]["status"] == "completed"


@pytest.mark.parametrize("names", ["abc", "a"])
def test_who_is_left_out_stands_in_the_journal_once(tmp_path: Path, names: str) -> None:
    """The names of the facts, and no value."""
    grid = ScriptedGrid(
        {name: noisy(ord(name)) for name in "abcd"}, {name: {"epsilon": 1.5} for name in names}
    )
    terms = RunConfig.parse(
        {"strategy": "weiavg", "rounds": 2, "runs-dir": str(tmp_path), "run-id": "r"}
    )
    run(grid, terms)
    events = read_journal(tmp_path / "r" / "journal.jsonl")
    left_out = {e["site"]: e["missing"] for e in events if e["event"] == "left-out"}
    assert left_out == {name: ["epsilon"] for name in "abcd" if name not in names}
    assert sum(e["event"] == "left-out" for e in events) == len(left_out)
