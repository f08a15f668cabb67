"""Real SuperNodes with real ledgers, killed, stopped and full, as in docs/how-to/resume.md.

One run under which one fault comes after the other; the tests look at what it left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.journal import Event, read_journal
from tests.e2e.engines import ROOT, Done, Federation, command_of, free_ports, rounds_of
from tests.e2e.faults import (
    HEART,
    Fact,
    broke_off,
    check_books,
    facts_of,
    family,
    histories,
    lines_with,
    signal_site,
    started_by,
    wait_for_round,
    wait_for_work,
    wait_until,
    write_hospital,
)

pytestmark = [pytest.mark.engines, pytest.mark.wards]

FULL, STEADY, VICTIM = "full", "steady", "victim"
SITES = {FULL: "va", STEADY: "hungarian", VICTIM: "switzerland"}
RUN, ROUNDS, TIMEOUT = "faults", 20, 120.0
"""No round takes so long: after a minute Flower knows that a node or an app is gone."""
TERMS = {
    **HEART, "run-id": RUN, "rounds": ROUNDS, "min-sites": len(SITES), "round-timeout": TIMEOUT,
}  # fmt: skip
PATHS = {'path = "ledger/ledger.sqlite"': 'path = "disk/ledger.sqlite"',
         'path = "state"': 'path = "disk/state"'}  # fmt: skip
SLOWLY = {"[budget]": "reply-after = 10.0\n\n[budget]"}
"""So that no more rounds go by than are needed, while a node comes back."""
PAUSE = 120.0
"""Seconds for which a site stands still."""
NO_REPLY, BROKE_OFF, FAILED = "no reply in time", "its work ended early", "failed"


@dataclass
class Story:
    """A federation, and what the test did to it and saw of it.

    Attributes:
        at: what was done → the round that was under way.
        seen: what was done → the ledger of the site it was done to, at that moment.
        left: processes that outlived what started them.
        said: what the commands said.
        mounted: whether the disk of ``FULL`` is one that can be full.
    """

    federation: Federation
    at: dict[str, int] = field(default_factory=dict)
    seen: dict[str, list[Fact]] = field(default_factory=dict)
    left: dict[str, list[str]] = field(default_factory=dict)
    said: dict[str, Done] = field(default_factory=dict)
    mounted: bool = False

    @property
    def folder(self) -> Path:
        return self.federation.home / "runs" / RUN

    @property
    def disk(self) -> Path:
        return self.federation.folder / "sites" / FULL / "disk"

    def ledger(self, site: str) -> Path:
        return self.federation.folder / "sites" / site / "disk" / "ledger.sqlite"

    def event(self, what: str) -> Event:
        return rounds_of(self.folder)[self.at[what] - 1]

    def accepted(self, site: str) -> set[int]:
        return {event["round"] for event in rounds_of(self.folder) if site in event["accepted"]}

    def history(self, site: str) -> dict[int, list[str]]:
        return histories(facts_of(self.ledger(site)), RUN)

    def note(self, what: str, site: str) -> None:
        """Note in which round the site is at work, and what its ledger says."""
        wait_until(lambda: histories(facts_of(self.ledger(site)), RUN))  # the lock comes before
        self.seen[what] = facts_of(self.ledger(site))
        self.at[what] = max(histories(self.seen[what], RUN))

    def wait_until_back(self, site: str, after: int) -> None:
        wait_until(lambda: max(self.accepted(site), default=0) > after)

    def kill(self, what: str, name: str) -> None:
        """Kill Flower's own process with -9; those around it must end by themselves."""
        below = family(self.federation, name)
        program = "flower-superlink" if name == "superlink" else "flower-supernode"
        lines = {pid: command_of(pid) for pid in below}
        (own,) = (p for p, line in lines.items() if program in line and "run_pair" not in line)
        os.kill(own, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not any(map(command_of, below)), 90)
        self.left[what] = [line for line in map(command_of, below) if line]

    def fill(self) -> None:
        with (self.disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 512)

    # --- what is done to it ------------------------------------------------------------------

    def tell(self) -> None:
        running = subprocess.Popen(
            self.federation.command("run", self.federation.write(TERMS)),
            env=self.federation.environment, cwd=self.federation.home,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self._kill_an_app()
            if self.mounted:
                self._fill_a_disk()
            self._stop_a_site()
            self._kill_a_node()
            self._kill_the_superlink()
            out, err = running.communicate(timeout=1200)
            self.said["run"] = subprocess.CompletedProcess([], running.returncode, out, err)
        finally:
            running.kill()
        self.said["up"] = self.federation.call("up", "--sites", self.federation.home / "sites")
        full = threading.Thread(target=self._fill_at_the_end)
        full.start()
        self.said["resume"] = self.federation.hdpfl("resume", RUN, "hdpfl", "--app", ROOT)
        full.join()

    def _kill_an_app(self) -> None:
        wait_for_work(self.ledger(VICTIM))
        self.note("app", VICTIM)
        for pid in started_by(self.federation, VICTIM, "flwr-clientapp"):
            os.kill(pid, signal.SIGKILL)
        self.wait_until_back(VICTIM, self.at["app"])

    def _fill_a_disk(self) -> None:
        wait_for_work(self.ledger(FULL))
        self.note("disk", FULL)
        self.fill()
        wait_for_round(self.folder, self.at["disk"] + 1)
        (self.disk / "ballast").unlink()
        self.wait_until_back(FULL, self.at["disk"])

    def _stop_a_site(self) -> None:
        wait_for_work(self.ledger(VICTIM))
        self.note("stop", VICTIM)
        signal_site(self.federation, VICTIM, signal.SIGSTOP)
        end = time.monotonic() + PAUSE
        try:
            wait_until(lambda: time.monotonic() > end)
            wait_for_round(self.folder, self.at["stop"])
        finally:
            signal_site(self.federation, VICTIM, signal.SIGCONT)
        self.wait_until_back(VICTIM, self.at["stop"])

    def _kill_a_node(self) -> None:
        wait_for_work(self.ledger(VICTIM))
        self.note("node", VICTIM)
        self.kill("node", VICTIM)
        again = self.federation.call("up", "--sites", self.federation.home / "sites")
        assert again.returncode == 0, again.stderr
        self.wait_until_back(VICTIM, self.at["node"])

    def _kill_the_superlink(self) -> None:
        wait_for_work(self.ledger(VICTIM))
        self.note("link", VICTIM)
        self.kill("link", "superlink")

    def _fill_at_the_end(self) -> None:
        wait_for_round(self.folder, ROUNDS)
        if self.mounted:
            self.fill()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("faults")
    for site, name in SITES.items():
        slowly = SLOWLY if site == STEADY else {}
        write_hospital(home / "sites" / site, name, {**PATHS, **slowly})
    told = Story(Federation(home, free_ports(len(SITES) + 1)))
    told.disk.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(told.disk)]
    told.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        started = told.federation.call("up", "--sites", home / "sites")
        assert started.returncode == 0, started.stderr
        told.tell()
        if told.mounted:
            (told.disk / "ballast").unlink(missing_ok=True)
        yield told
    finally:
        told.federation.call("down")
        if told.mounted:
            subprocess.run(["umount", str(told.disk)], check=False)


def test_the_run_comes_to_its_end_and_loses_no_round_but_those(story: Story) -> None:
    done = story.said["resume"]
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = rounds_of(story.folder)
    assert [event["round"] for event in rounds] == list(range(1, ROUNDS + 1))
    for event in rounds:
        assert STEADY in event["accepted"]
        assert len(event["accepted"]) >= event["quorum"] == 2
    missed = {story.at[what] for what in ("app", "stop", "node")}
    assert {event["round"] for event in rounds if VICTIM in event["rejected"]} == missed


def test_who_kills_a_client_app_loses_that_round_alone(story: Story) -> None:
    number = story.at["app"]
    assert story.event("app")["rejected"] == {VICTIM: BROKE_OFF}
    assert broke_off(story.history(VICTIM)[number])
    assert number + 1 in story.accepted(VICTIM)
    (line, *_) = lines_with(story.federation.log(VICTIM), f"the work on round {number} broke off")
    assert "because its process was killed or the disk was full; nothing of it left" in line


def test_a_full_disk_releases_nothing_and_is_told(story: Story) -> None:
    if not story.mounted:
        pytest.skip("no small disk: mounting a tmpfs is not allowed here")
    first = story.at["disk"]
    history = story.history(FULL)
    for number in (first, first + 1):
        assert rounds_of(story.folder)[number - 1]["rejected"] == {FULL: FAILED}
    assert broke_off(history[first])  # taken, and nothing left: it counts all the same
    assert first + 1 not in history
    assert max(story.accepted(FULL)) > first + 1
    told = lines_with(story.federation.log(FULL), "failed: ledger: the disk is full; free some")
    assert len(told) == 2


def test_a_full_disk_costs_no_run_its_end(story: Story) -> None:
    """The final model is lost there, and the log says so; the run and the others have theirs."""
    if not story.mounted:
        pytest.skip("no small disk: mounting a tmpfs is not allowed here")
    log = story.federation.log(FULL)
    assert lines_with(log, "failed: state: .* cannot be written: No space left on device")
    kept = {site: story.ledger(site).parent / "state" / "model.safetensors" for site in SITES}
    assert [site for site, path in kept.items() if path.exists()] == [STEADY, VICTIM]


def test_a_site_that_is_stopped_loses_that_round_and_misses_the_others(story: Story) -> None:
    """When it continues, either its update is sealed, too late and used nowhere, or Flower ends its
    task first, whose heartbeat is overdue."""
    number = story.at["stop"]
    assert story.event("stop")["rejected"] == {VICTIM: NO_REPLY}
    check_broken_off(story, number)
    assert number not in story.accepted(VICTIM)


def test_who_kills_a_super_node_loses_that_round_alone(story: Story) -> None:
    """What it started ends by itself, a moment later: it may have sealed its update by then."""
    number = story.at["node"]
    assert story.left["node"] == []
    assert story.event("node")["rejected"] == {VICTIM: NO_REPLY}
    check_broken_off(story, number)


def check_broken_off(story: Story, number: int) -> None:
    """Assert that the victim sealed its update of a round or says that it broke off, not both."""
    history = story.history(VICTIM)[number]
    assert broke_off(history) or history == ["reserved", "sealed", "sent"][: len(history)]
    told = lines_with(story.federation.log(VICTIM), f"the work on round {number} broke off")
    assert bool(told) == broke_off(history)


def test_who_kills_the_super_link_goes_on_with_hdpfl_resume(story: Story) -> None:
    """The round is asked again: who had sealed it sends the same bytes, and charges nothing."""
    number = story.at["link"]
    assert story.left["link"] == []
    assert story.said["run"].returncode != 0
    assert "Connection to the SuperLink is unavailable" in story.said["run"].stderr
    assert story.said["up"].returncode == 0, story.said["up"].stderr
    assert f"run {RUN}: {number - 1} of {ROUNDS} rounds are done" in story.said["resume"].stdout
    assert story.event("link")["accepted"] == sorted(SITES)
    for site in SITES:
        assert story.history(site)[number] == ["reserved", "sealed", "sent"]
    events = [event["event"] for event in read_journal(story.folder / "journal.jsonl")]
    assert events.count("run-started") == events.count("run-resumed") == 1


@pytest.mark.parametrize("site", SITES)
def test_no_ledger_is_charged_less_than_it_released(story: Story, site: str) -> None:
    profile = story.federation.profile(site)
    check_books(profile, story.ledger(site), RUN, story.accepted(site))
    after = facts_of(story.ledger(site))
    for before in story.seen.values():
        if before[0].digest == after[0].digest:
            assert after[: len(before)] == before
