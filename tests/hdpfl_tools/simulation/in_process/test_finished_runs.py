"""Runs of a comparison that was interrupted: finished ones are read, the others are resumed."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import CheckpointError
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_tools.simulation.in_process.comparison import RunJob, compare, jobs_of
from hdpfl_tools.simulation.in_process.finished_runs import folder_of, run_anew, run_or_resume
from server_app.run.checkpoint import NAME

SITES, ROUNDS = 3, 3
CASES: dict[str, dict[str, Any]] = {"records": {}, "stack": {"stack": True}}
CASES["server"] = {"noise": "server"}
RULES = {"server": ("dp-fedavg", "fedhdp")}
pytestmark = pytest.mark.usefixtures("guessed_noise")


class Killed(KeyboardInterrupt):
    """Ends a run where it is; no other exception passes a site's guard."""


def jobs(folder: Path, case: str, *strategies: str) -> list[RunJob]:
    config = RunConfig.parse({
        "dataset": "digits", "model": "logreg", "rounds": ROUNDS, "local-steps": 3,
        "batch-sizes": "16", "epsilons": "4", "runs-dir": str(folder), "seed": 3, **CASES[case],
    })  # fmt: skip
    return jobs_of(config, list(strategies), 1, SITES)


def killed_at(rounds: int) -> Callable[[], None]:
    """Return what to call after a round, which ends all of it after so many."""
    left = [rounds]

    def on_round() -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    return on_round


def found(todo: list[RunJob], work: Any, on_round: Callable[[], None] = lambda: None) -> Any:
    """Return what a comparison says of its runs: what does not differ from call to call."""

    def lasting(events: list[Event]) -> list[Any]:
        return [(event["round"], event["metrics"], event.get("tested")) for event in events]

    return {job.key: lasting(events) for job, events in compare(todo, 1, on_round, work)}


def times_resumed(job: RunJob) -> int:
    events = read_journal(folder_of(job) / "journal.jsonl")
    return sum(event["event"] == "run-resumed" for event in events)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_comparison_ends_as_an_uninterrupted_one(tmp_path: Path, case: str) -> None:
    rules = RULES.get(case, ("fedavg", "mmse"))
    whole = found(jobs(tmp_path / "whole", case, *rules), run_anew)
    todo = jobs(tmp_path / "killed", case, *rules)
    with pytest.raises(Killed):
        found(todo, run_or_resume, killed_at(ROUNDS + 2))  # in the second round of the second run
    ticks: list[int] = []
    assert found(todo, run_or_resume, lambda: ticks.append(1)) == whole
    assert len(ticks) == 2 * ROUNDS  # a bar over all rounds ends full
    assert [times_resumed(job) for job in todo] == [0, 1]


def test_a_crash_leaves_no_ledgers_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found(jobs(tmp_path / "whole", "records", "fedavg"), run_anew)
    todo = jobs(tmp_path / "killed", "records", "fedavg")

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Chain, "append", killed)  # the first is of the cap
        with pytest.raises(Killed):
            found(todo, run_or_resume)
    assert list(folder_of(todo[0]).glob("sites/*/ledger.sqlite"))
    assert found(todo, run_or_resume) == whole


def test_what_broke_off_without_a_checkpoint_is_run_again(tmp_path: Path) -> None:
    todo = jobs(tmp_path / "killed", "records", "fedavg", "mmse")
    whole = found(jobs(tmp_path / "whole", "records", "fedavg", "mmse"), run_anew)
    with pytest.raises(Killed):
        found(todo, run_anew, killed_at(ROUNDS + 2))
    first = (folder_of(todo[0]) / "journal.jsonl").read_bytes()
    assert found(todo, run_or_resume) == whole
    assert (folder_of(todo[0]) / "journal.jsonl").read_bytes() == first
    assert times_resumed(todo[1]) == 0


def test_a_run_of_another_process_is_left_alone(tmp_path: Path) -> None:
    (job,) = jobs(tmp_path, "records", "fedavg")
    with pytest.raises(Killed):
        run_or_resume(job, killed_at(1))
    journal = folder_of(job) / "journal.jsonl"
    for remove in (False, True):  # with its checkpoint, and before there is one
        if remove:
            (folder_of(job) / NAME).unlink()
        with journal.open() as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            with pytest.raises(CheckpointError, match="another process"):
                run_or_resume(job, lambda: None)
        assert journal.exists()
