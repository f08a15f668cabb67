"""Runs beyond one command: finished ones are read, interrupted ones resumed.

A run is finished when its folder holds ``finished.json``, which is written last and in one step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from hdpfl_flower.errors import CheckpointError, DataError
from hdpfl_flower.monitoring.journal import Event, finished_rounds, read_journal
from hdpfl_flower.system.files import replace_file
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob, run_job
from hdpfl_tools.simulation.in_process.in_process_run import on_rounds, resume_in_process
from server_app.run.checkpoint import NAME as CHECKPOINT
from server_app.run.resume import JOURNAL, is_locked, open_run, recorded_rounds

FINISHED = "finished.json"


def store_finished(folder: Path, events: Sequence[Event], ended_early: str = "") -> None:
    """Mark the run in ``folder`` as finished.

    Args:
        folder: the run's, with its journal.
        events: its rounds; personal models are tested after the journal's last line, so those
            facts of the last event are stored here.
        ended_early: why it has fewer rounds than planned; empty: it has all.
    """
    facts = {"rounds": len(events), "ended-early": ended_early, "metrics": events[-1]["metrics"]}
    if "tested" in events[-1]:
        facts["tested"] = events[-1]["tested"]
    replace_file(folder / FINISHED, json.dumps(facts).encode(), mode=0o644)


def read_finished(folder: Path) -> list[Event] | None:
    """Return the rounds of a finished run in ``folder``, or None."""
    try:
        facts = json.loads((folder / FINISHED).read_text())
        rounds = int(facts["rounds"])
        events = finished_rounds(read_journal(folder / JOURNAL))
        events[-1]["metrics"] |= facts.get("metrics", {})
        if "tested" in facts:
            events[-1]["tested"] = facts["tested"]
    except (OSError, ValueError, LookupError, TypeError, DataError):
        return None
    # A journal with another number of rounds was changed since: the run is done again.
    return events if len(events) == rounds else None


def run_anew(job: RunJob, on_round: OnRound) -> list[Event]:
    """Run a job, store its completion, return its rounds; picklable.

    Raises:
        HDPFLError: the job cannot run.
    """
    folder = folder_of(job)
    for name in (FINISHED, CHECKPOINT):  # of an earlier run: nothing resumes there any more
        (folder / name).unlink(missing_ok=True)
    events = run_job(job, on_round)
    store_finished(folder, events)
    return events


def run_or_resume(job: RunJob, on_round: OnRound) -> list[Event]:
    """Return a job's rounds: read, resumed or run, by least work.

    A run stores a checkpoint after every round and its sites' ledgers in files; after any crash
    the final model is that of the run without one. A run interrupted without a checkpoint is
    removed and run again. The caller has verified that the folder's run has the job's terms.

    Args:
        job: without an attack.
        on_round: called after every round, and once for each that an earlier call finished.

    Raises:
        CheckpointError: the checkpoint is damaged, another process has the run, or an interrupted
            run cannot be removed.
        HDPFLError: the job cannot run.
    """
    folder = folder_of(job)
    if (events := read_finished(folder)) is not None:
        for _ in events:
            on_round()
        return events

    if (folder / CHECKPOINT).exists():
        events = _resume(folder, on_round)
    else:
        if (folder / JOURNAL).exists():
            _remove(folder)
        events = run_job(job, on_round, resumable=True)
    store_finished(folder, events)
    return events


def _resume(folder: Path, on_round: OnRound) -> list[Event]:
    checkpoint = open_run(folder)
    for _ in recorded_rounds(read_journal(folder / JOURNAL), checkpoint.server_round):
        on_round()
    return resume_in_process(checkpoint, on_rounds(on_round)).rounds


def _remove(folder: Path) -> None:
    """Remove an interrupted run without a checkpoint, with its old ledgers."""
    if is_locked(folder):
        raise CheckpointError(f"another process works on the run in {folder}; wait for it")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise CheckpointError(
            f"the run in {folder} is incomplete and cannot be removed: {error.strerror}; remove "
            "it yourself, or name another --out"
        ) from None


def folder_of(job: RunJob) -> Path:
    """Return the folder of a job's run."""
    return Path(job.config.server.runs_dir) / job.terms.run_id
