"""The SuperLink's database, locked for 12 seconds in mid-run: neither site nor run is lost."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.journal import Event
from tests.e2e.engines import Federation, free_ports, rounds_of
from tests.e2e.faults import HEART, check_books, rounds_so_far, wait_for_round, write_hospital

pytestmark = [pytest.mark.engines, pytest.mark.wards]

SITES = ("va", "hungarian")
RUN, ROUNDS, SECONDS = "locked", 6, 12.0
TERMS = {**HEART, "run-id": RUN, "rounds": ROUNDS, "min-sites": 2, "quorum": 1}


@dataclass(frozen=True)
class Ended:
    """The run's end, and how many rounds were done when the database was locked."""

    federation: Federation
    done: subprocess.CompletedProcess[str]
    before: int

    @property
    def rounds(self) -> list[Event]:
        return rounds_of(self.federation.home / "runs" / RUN)


def hold_write_lock(database: Path, seconds: float) -> None:
    """Keep everybody else from writing to a database."""
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as db:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        db.rollback()


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    home = tmp_path_factory.mktemp("locked")
    for name in SITES:
        write_hospital(home / "sites" / name, name, {})
    federation = Federation(home, free_ports(len(SITES) + 1))
    folder = home / "runs" / RUN
    try:
        started = federation.call("up", "--pin", "--sites", home / "sites")
        assert started.returncode == 0, started.stderr
        running = subprocess.Popen(
            federation.command("run", federation.write(TERMS)),
            env=federation.environment, cwd=home,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            wait_for_round(folder, 2)
            before = len(rounds_so_far(folder))
            hold_write_lock(federation.folder / "superlink" / "state.db", SECONDS)
            out, err = running.communicate(timeout=1200)
        finally:
            running.kill()
        yield Ended(
            federation, subprocess.CompletedProcess([], running.returncode, out, err), before
        )
    finally:
        federation.call("down")


def test_all_sites_are_back_within_two_rounds(ended: Ended) -> None:
    assert ended.done.returncode == 0, ended.done.stdout + ended.done.stderr
    assert len(ended.rounds) == ROUNDS
    for event in ended.rounds[ended.before + 2 :]:
        assert sorted(event["accepted"]) == sorted(SITES)


@pytest.mark.parametrize("site", SITES)
def test_no_round_is_charged_twice(ended: Ended, site: str) -> None:
    ledger = ended.federation.folder / "sites" / site / "ledger" / "ledger.sqlite"
    accepted = {event["round"] for event in ended.rounds if site in event["accepted"]}
    check_books(ended.federation.profile(site), ledger, RUN, accepted)
