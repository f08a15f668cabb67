"""A run whose budgets are used up is complete; who is left out stands in its journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process


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
    last = [event["event"] for event in events[-3:]]
    assert last == ["budgets-used-up", "measures", "run-finished"]
    assert events[-1]["status"] == "completed"
