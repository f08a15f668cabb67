"""Kept runs, each named by all inputs of its result.

A run is finished when its folder holds ``finished.json``, which is written last. An
interrupted run has none, does not count and is run again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from hdpfl_flower.errors import DataError, StrategyError
from hdpfl_flower.monitoring.journal import Event, finished_rounds, read_journal
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob, run_job
from hdpfl_tools.simulation.in_process.finished_runs import folder_of, read_finished, store_finished

_NOT_IN_THE_NAME = frozenset({"run-id", "runs-dir", "data-dir"})
"""Terms of locations, which do not change a result."""


def name_of(job: RunJob, environment: Mapping[str, str] = os.environ) -> str:
    """Return the run's name: strategy, seed, and hash of its inputs.

    That is every term, the number of sites, the round it stops after, the liars' attack,
    this package's version, and whether the GPU is hidden; not the folders.

    Guarantees:
        Two jobs with different results have different names, within one version of the code;
        after editing the code, remove the runs.
    """
    config = job.config.as_config()
    facts = {
        "terms": {key: value for key, value in config.items() if key not in _NOT_IN_THE_NAME},
        "sites": job.num_sites,
        "stop-after": job.stop_after,
        "attack": repr(job.attack),
        "devices": environment.get("CUDA_VISIBLE_DEVICES"),
        "version": _version(),
    }
    # Sorted keys: the name does not depend on the order of a study's terms.
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return (
        f"{re.sub('[+:]', '.', job.terms.strategy)}-seed{job.config.simulation.seed}-{digest[:16]}"
    )


def with_run_name(job: RunJob) -> RunJob:
    """Return the job with :func:`name_of` as its run id."""
    return replace(job, config=job.config.updated(run_id=name_of(job)))


def finished_run(job: RunJob) -> list[Event] | None:
    """Return the round events of a finished job, or None."""
    return read_finished(folder_of(job))


def keep(job: RunJob, on_round: OnRound) -> list[Event]:
    """Run a job and keep its events under its name.

    The rest of an interrupted run there is removed first.
    A run that ends without a quorum is also a result: it keeps its rounds.

    Args:
        job: the run.
        on_round: called after every round.

    Raises:
        HDPFLError: the job cannot run.
    """
    folder = folder_of(job)
    # An interrupted run may have left a journal and ledgers that the new run would read: remove
    # all.
    _remove(folder)
    why = ""
    try:
        with quiet():
            events = run_job(job, on_round)
    except StrategyError as error:
        events = _rounds_so_far(folder)
        if not events:
            raise
        why = str(error)
    _remove(folder / "sites")  # the simulated ledgers: no real account
    store_finished(folder, events, why)
    return events


@contextmanager
def quiet() -> Iterator[None]:
    """Show refused sites, of which a study has many, only in journals."""
    log = logging.getLogger("hdpfl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _remove(folder: Path) -> None:
    """Remove ``folder``, if it exists; raises ``DataError`` on failure."""
    try:
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be removed: {error.strerror}; remove it, and start again"
        ) from None


def _rounds_so_far(folder: Path) -> list[Event]:
    try:
        return finished_rounds(read_journal(folder / "journal.jsonl"))
    except DataError:
        return []


@cache
def _version() -> str:
    return version("hdpfl-flower")
