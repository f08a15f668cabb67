"""Sites that pin their code: each process of a site is killed with -9, at work and at rest.

One run, and three waves of kills under it; the tests look at what they left.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.engines import Done, Federation, command_of, free_ports, processes, rounds_of
from tests.e2e.faults import (
    HEART,
    Fact,
    broke_off,
    check_books,
    facts_of,
    family,
    histories,
    lines_with,
    locks_of,
    pid_of,
    wait_for_work,
    wait_until,
    write_hospital,
)

pytestmark = [pytest.mark.engines, pytest.mark.wards]

STEADY, FIRST, SECOND, THIRD, ANYWHERE = "steady", "first", "second", "third", "anywhere"
SITES = {STEADY: "va", FIRST: "hungarian", SECOND: "switzerland", THIRD: "hungarian",
         ANYWHERE: "va"}  # fmt: skip
RUN, ROUNDS, TIMEOUT = "kills", 18, 150.0
TERMS = {
    **HEART, "run-id": RUN, "rounds": ROUNDS, "min-sites": len(SITES), "quorum": 2,
    "round-timeout": TIMEOUT,
}  # fmt: skip
SLOWLY = {"[budget]": "reply-after = 10.0\n\n[budget]"}
"""So that no more rounds go by than are needed, while a node comes back."""
LAUNCHER, TASKS, PAIR = "launcher", "flower-superexec", "run_pair"
AT_WORK = {FIRST: LAUNCHER}
"""The first wave."""
NODES = {SECOND: TASKS, THIRD: PAIR}
"""The second wave."""
LATEST = 4.0
"""Seconds after a message has come, until which a process of ``ANYWHERE`` is killed."""


def programs(federation: Federation, site: str) -> dict[str, int]:
    """Return the processes of a site that are there now."""
    pair = pid_of(federation, site)
    found = {PAIR: pair} if command_of(pair) else {}
    table = processes.table()
    lines = {pid: command_of(pid).split() for pid in table}
    names = {pid: _program(words) for pid, words in lines.items()}
    found |= {names[pid]: pid for pid, living in table.items() if living.parent == pair}
    tasks = found.get(TASKS)
    for pid, living in table.items():
        if names.get(pid) == "flwr-clientapp" and living.parent == tasks:
            found[LAUNCHER] = pid
    return found


def _program(words: list[str]) -> str:
    """Return the name of the Python program in a command line."""
    names = [Path(word).name for word in words[1:] if not word.startswith("-")]
    return next((name for name in names if name != "hdpfl-patient"), "")


@dataclass
class Story:
    """A federation, what the test killed, and what it saw.

    Attributes:
        killed: (site, program) → the round under way, and the ledger at that moment.
        anywhere: programs of ``ANYWHERE`` that were killed, and in which round.
        left: processes of a site that outlived what started them.
        said: what the commands printed.
    """

    federation: Federation
    killed: dict[tuple[str, str], tuple[int, list[Fact]]] = field(default_factory=dict)
    anywhere: list[tuple[str, int]] = field(default_factory=list)
    left: dict[str, list[str]] = field(default_factory=dict)
    said: dict[str, Done] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.federation.home / "runs" / RUN

    def ledger(self, site: str) -> Path:
        return self.federation.profile(site).parent / "ledger" / "ledger.sqlite"

    def accepted(self, site: str) -> set[int]:
        return {event["round"] for event in rounds_of(self.folder) if site in event["accepted"]}

    def lost(self, site: str) -> dict[int, str]:
        rounds = rounds_of(self.folder)
        return {e["round"]: e["rejected"][site] for e in rounds if site in e["rejected"]}

    def round_of(self, site: str) -> int:
        return max(histories(facts_of(self.ledger(site)), RUN), default=0)

    def wait_for(self, site: str, program: str) -> int:
        """Return a process of a site, once it is there."""
        wait_until(lambda: program in programs(self.federation, site))
        return programs(self.federation, site)[program]

    def wait_until_back(self, site: str, after: int) -> None:
        wait_until(lambda: max(self.accepted(site), default=0) > after)

    def kill_at_work(self, site: str, program: str) -> None:
        wait_for_work(self.ledger(site))
        pid = programs(self.federation, site)[program]
        self.killed[site, program] = self.round_of(site), facts_of(self.ledger(site))
        os.kill(pid, signal.SIGKILL)

    def kill_node(self, site: str, program: str) -> None:
        """Kill what holds a site's processes together, at work; all others must end."""
        below = family(self.federation, site)
        wait_for_work(self.ledger(site))
        found = programs(self.federation, site)
        below |= family(self.federation, site) | processes._family(found.values())
        self.killed[site, program] = self.round_of(site), facts_of(self.ledger(site))
        os.kill(found[program], signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not any(map(command_of, below)), 90)
        self.left[site] = [line for line in map(command_of, below) if line]

    def kill_anywhere(self, draws: random.Random) -> None:
        """Kill some process of a message's at some moment, once a message has come."""
        before = locks_of(self.ledger(ANYWHERE))
        self.wait_for(ANYWHERE, LAUNCHER)
        time.sleep(draws.uniform(0, LATEST))
        found = programs(self.federation, ANYWHERE)
        if (program := LAUNCHER) not in found:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[program], signal.SIGKILL)
        began = bool(locks_of(self.ledger(ANYWHERE)) - before)
        self.anywhere.append((f"{program}{' at work' if began else ''}", self.round_of(ANYWHERE)))

    def wave(self, *kills: Callable[[], None]) -> None:
        """Do all at once, and one more anywhere."""
        draws = random.Random(len(self.anywhere))
        threads = [Kill(kill) for kill in (*kills, lambda: self.kill_anywhere(draws))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for thread in threads:
            if thread.error is not None:
                raise thread.error

    def tell(self) -> None:
        run = threading.Thread(target=self._run, daemon=True)
        run.start()
        self.wave(*(lambda s=s, p=p: self.kill_at_work(s, p) for s, p in AT_WORK.items()))
        for site, program in AT_WORK.items():
            self.wait_until_back(site, self.killed[site, program][0])
        self.wave(*(lambda s=s, p=p: self.kill_node(s, p) for s, p in NODES.items()))
        self.said["up"] = self.federation.call(
            "up", "--pin", "--sites", self.federation.home / "sites"
        )
        self.wave()
        for site, program in NODES.items():
            self.wait_until_back(site, self.killed[site, program][0])
        run.join(timeout=2400)

    def _run(self) -> None:
        self.said["run"] = subprocess.run(
            self.federation.command("run", self.federation.write(TERMS)),
            env=self.federation.environment, cwd=self.federation.home,
            capture_output=True, text=True, check=False, timeout=2400,
        )  # fmt: skip


class Kill(threading.Thread):
    """A thread that keeps what it raised."""

    def __init__(self, kill: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._kill = kill
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._kill()
        except Exception as error:  # raised again by the wave
            self.error = error


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("kills")
    for site, name in SITES.items():
        write_hospital(home / "sites" / site, name, SLOWLY if site == STEADY else {})
    told = Story(Federation(home, free_ports(len(SITES) + 1)))
    try:
        started = told.federation.call("up", "--pin", "--sites", home / "sites")
        assert started.returncode == 0, started.stderr
        told.tell()
        yield told
    finally:
        told.federation.call("down")


def test_the_run_ends_and_the_others_lose_no_round(story: Story) -> None:
    done = story.said["run"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert [event["round"] for event in rounds_of(story.folder)] == list(range(1, ROUNDS + 1))
    assert story.lost(STEADY) == {}


@pytest.mark.parametrize("site", AT_WORK)
def test_who_kills_a_process_of_a_message_loses_that_round_alone(story: Story, site: str) -> None:
    """Nothing of the message leaves."""
    number, _ = story.killed[site, AT_WORK[site]]
    rounds = histories(facts_of(story.ledger(site)), RUN)
    assert broke_off(rounds[number])
    assert {number} <= story.lost(site).keys()
    assert number + 1 in story.accepted(site)
    log = story.federation.log(site)
    assert lines_with(log, f"the work on round {number} broke off")


@pytest.mark.parametrize("site", NODES)
def test_a_killed_node_misses_rounds_until_it_is_up_again(story: Story, site: str) -> None:
    number, _ = story.killed[site, NODES[site]]
    assert story.left[site] == []
    assert story.said["up"].returncode == 0, story.said["up"].stderr
    # Its launcher ends in order when its parent is gone: what it works on is given up, or sealed.
    history = histories(facts_of(story.ledger(site)), RUN)[number]
    assert history[:1] == ["reserved"]
    assert history[1:] in ([], ["lost"], ["sealed"], ["sealed", "sent"])
    assert max(story.accepted(site)) > number


def test_a_kill_anywhere_costs_that_round_at_most(story: Story) -> None:
    assert len(story.anywhere) >= 2, story.anywhere
    rounds = {number for _, number in story.anywhere}
    # A message that was killed before its work had begun belongs to the round after the last one.
    assert story.lost(ANYWHERE).keys() <= rounds | {number + 1 for number in rounds}
    assert max(story.accepted(ANYWHERE)) == ROUNDS


@pytest.mark.parametrize("site", SITES)
def test_no_ledger_is_charged_less_than_it_released(story: Story, site: str) -> None:
    check_books(story.federation.profile(site), story.ledger(site), RUN, story.accepted(site))
    after = facts_of(story.ledger(site))
    for (other, _), (_, before) in story.killed.items():
        if other == site:
            assert after[: len(before)] == before
