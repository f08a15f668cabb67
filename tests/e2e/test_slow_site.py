"""A site that hangs and comes back, and one that dies: the run goes on, and says what happened."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from flwr.app import Message

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_tools.simulation.in_process.grid import LocalGrid
from server_app.run.rounds import run
from tests.e2e.engines import SITES, Done, Federation, digest, rounds_of, seeded_terms

pytestmark = [pytest.mark.engines, pytest.mark.deadline]

TIMEOUT = 32.0
"""Below the 36 seconds after which a SuperLink takes a silent SuperNode off its list."""
STEADY, DYING, SLOW, OTHER = ALL = [str(site) for site in range(SITES)]
TOO_LATE = "no reply in time"
MISSED = {(1, SLOW), (2, DYING)}
TERMS = seeded_terms(
    strategy="robust-hdp", rounds=2, quorum=2, **{"round-timeout": TIMEOUT, "run-id": "slow"}
)


@dataclass(frozen=True)
class Ended:
    """What a run left in which one site was late in round 1 and another one died in round 2."""

    done: Done
    folder: Path
    rounds: list[Event]


def signal_site(federation: Federation, site: str, number: signal.Signals) -> None:
    """Send a signal to the SuperNode of ``site`` and to all that it started."""
    note = json.loads((federation.folder / "pids" / f"{site}.json").read_text())
    os.killpg(note["pid"], number)  # deploy/processes.py starts it in a session of its own


def wait_for(folder: Path, kind: str) -> None:
    """Wait for the first event of a kind in the journal of the run in ``folder``."""
    deadline = time.monotonic() + 240
    while True:
        try:
            if any(event["event"] == kind for event in read_journal(folder / "journal.jsonl")):
                return
        except DataError:
            pass
        assert time.monotonic() < deadline, f"the journal has no '{kind}'"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def ended(federation: Federation) -> Ended:
    """The last run of the shared federation: no file of tests that follows may use it.

    All sites answer at the start, which waits for them; the slow one stops before round 1.
    """
    folder, done = federation.home / "runs" / TERMS.terms.run_id, []
    running = threading.Thread(target=lambda: done.append(federation.run(TERMS)[1]))
    running.start()
    wait_for(folder, "privacy")  # what is promised, which all sites have said
    signal_site(federation, SLOW, signal.SIGSTOP)
    try:
        wait_for(folder, "round")
    finally:
        signal_site(federation, SLOW, signal.SIGCONT)
    signal_site(federation, DYING, signal.SIGKILL)
    running.join(240)
    return Ended(done[0], folder, rounds_of(folder))


def test_the_run_completes(ended: Ended) -> None:
    assert ended.done.returncode == 0, ended.done.stdout + ended.done.stderr
    assert [event["round"] for event in ended.rounds] == [1, 2]
    for event in ended.rounds:
        assert event["asked"] == ALL
        assert event["quorum"] == 2


def test_a_late_site_costs_its_round_and_no_other(ended: Ended) -> None:
    late, back = ended.rounds
    assert late["accepted"] == [STEADY, DYING, OTHER]
    assert late["rejected"] == {SLOW: TOO_LATE}
    assert TIMEOUT <= late["seconds"] < TIMEOUT + 10
    assert SLOW in back["accepted"]


def test_a_dead_site_is_recorded_like_a_late_one(ended: Ended) -> None:
    last = ended.rounds[-1]
    assert last["accepted"] == [STEADY, SLOW, OTHER]
    assert last["rejected"] == {DYING: TOO_LATE}


class Absent(LocalGrid):
    """The same sites in process; those that miss a round are not asked in it."""

    def __init__(self, missed: set[tuple[int, str]], config: RunConfig) -> None:
        super().__init__(SITES, config=config)
        self.missed = missed

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        def comes(message: Message) -> bool:
            site = str(message.metadata.dst_node_id - 2)
            server_round = wire.read_instructions(message.content).server_round
            return (server_round, site) not in self.missed

        return super().send_and_receive(filter(comes, messages), timeout=timeout)


def test_the_model_is_that_of_the_updates_that_came(ended: Ended, tmp_path: Path) -> None:
    """Bit by bit, of these and no others: the late update is in it nowhere."""
    digests: list[str] = []
    for missed in (MISSED, MISSED - {(1, SLOW)}, MISSED - {(2, DYING)}):
        folder = tmp_path / str(len(digests))
        config = TERMS.updated(runs_dir=str(folder))
        grid = Absent(missed, config)
        try:
            run(grid, config)
        finally:
            grid.close()
        digests.append(digest(folder / TERMS.terms.run_id))
    assert [digest(ended.folder) == other for other in digests] == [True, False, False]
