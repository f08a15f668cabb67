"""Processes beside this one: none for what is short, and each job once, here or there."""

from __future__ import annotations

import os
import time

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.monitoring.journal import Event
from hdpfl_tools.simulation.in_process import comparison
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob, compare

JOBS = [RunJob(RunConfig().updated(seed=seed), 2) for seed in range(6)]


def note(job: RunJob, on_round: OnRound) -> list[Event]:
    """Return the process that did the job."""
    time.sleep(0.2)
    on_round()
    return [{"process": os.getpid(), "seed": job.config.simulation.seed}]


def fail_there(job: RunJob, on_round: OnRound) -> list[Event]:
    """Fail where the job's ``run-id`` says that this is another process."""
    if str(os.getpid()) != job.terms.run_id:
        raise TermsError("this job cannot run")
    return note(job, on_round)


def test_a_long_comparison_does_each_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "WORTH", 0.0)
    monkeypatch.setattr(comparison, "make_pool", waits_for_its_first(comparison.make_pool))
    ticks: list[int] = []
    found = list(compare(JOBS, 2, lambda: ticks.append(1), note))
    assert sorted(events[0]["seed"] for _, events in found) == list(range(6))
    assert all(job.config.simulation.seed == events[0]["seed"] for job, events in found)
    processes = {events[0]["process"] for _, events in found}
    assert os.getpid() in processes
    assert len(processes) == 2
    assert len(ticks) == 6


def test_what_fails_elsewhere_fails_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "WORTH", 0.0)
    monkeypatch.setattr(comparison, "make_pool", waits_for_its_first(comparison.make_pool))
    here = [RunJob(job.config.updated(run_id=str(os.getpid())), 2) for job in JOBS]
    with pytest.raises(TermsError, match="this job cannot run"):
        list(compare(here, 2, lambda: None, fail_there))


def waits_for_its_first(make):  # type: ignore[no-untyped-def]
    """Return ``make``, whose pool has a running process when it is returned."""

    def made(processes: int):  # type: ignore[no-untyped-def]
        pool = make(processes)
        pool.submit(os.getpid).result(60)
        return pool

    return made
