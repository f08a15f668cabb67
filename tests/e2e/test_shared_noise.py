"""Four pinned sites that share noise: two runs at once, then one in which a site is killed."""

from __future__ import annotations

import itertools
import json
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.monitoring.journal import Event, read_journal
from tests.e2e.engines import Federation, free_ports, to_toml
from tests.e2e.faults import (
    facts_of,
    histories,
    rounds_so_far,
    signal_site,
    site_says,
    wait_for_work,
    wait_until,
    write_hospital,
)

pytestmark = [pytest.mark.engines, pytest.mark.wards]

SITES = ["cleveland", "hungarian", "switzerland", "va"]
VICTIM, STEADY = "switzerland", "va"
TERMS: dict[str, Any] = {
    "noise": "shared", "dataset": "site", "schema": "heart", "model": "logreg",
    "evaluation": "none", "learning-rate": 0.2, "min-sites": len(SITES), "round-timeout": 150.0,
}  # fmt: skip
AT_ONCE = {"first": 4, "second": 3}
"""Run → its rounds."""
ROUNDS = 14
LAST: dict[str, Any] = {**TERMS, "run-id": "killed", "rounds": ROUNDS, "spare-rounds": 0.3}
SLOWLY = {"[budget]": "reply-after = 8.0\n\n[budget]"}
"""So that no more rounds go by than are needed, while a node comes back."""


@dataclass
class Story:
    """A federation after its runs.

    Attributes:
        federation: of the four sites.
        broken: the round in which the victim was killed.
    """

    federation: Federation
    broken: int = 0

    def ledger(self, site: str) -> Path:
        return self.federation.profile(site).parent / "ledger" / "ledger.sqlite"

    def rounds(self, run: str) -> list[Event]:
        return rounds_so_far(self.federation.home / "runs" / run)

    def start(self, name: str, terms: dict[str, Any]) -> subprocess.Popen[str]:
        path = self.federation.home / f"{name}.toml"
        path.write_text(to_toml(terms))
        return subprocess.Popen(
            self.federation.command("run", path), env=self.federation.environment,
            cwd=self.federation.home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def end(self, *runs: subprocess.Popen[str]) -> None:
        for run in runs:
            out, _ = run.communicate(timeout=1500)
            assert run.returncode == 0, out

    def tell(self) -> None:
        runs = [
            self.start(name, {**TERMS, "run-id": name, "rounds": rounds})
            for name, rounds in AT_ONCE.items()
        ]
        try:
            self.end(*runs)
            runs.append(self.start("killed", LAST))
            wait_until(lambda: self.rounds("killed"))
            wait_for_work(self.ledger(VICTIM))
            self.broken = len(self.rounds("killed")) + 1
            signal_site(self.federation, VICTIM, signal.SIGKILL)
            wait_until(lambda: len(self.rounds("killed")) > self.broken)
            again = self.federation.call("up", "--pin", "--sites", self.federation.home / "sites")
            assert again.returncode == 0, again.stderr
            self.end(runs[-1])
        finally:
            for run in runs:
                run.kill()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("shared")
    for site in SITES:
        write_hospital(home / "sites" / site, site, SLOWLY)
    federation = Federation(home, free_ports(len(SITES) + 1))
    try:
        started = federation.call("up", "--pin", "--sites", home / "sites")
        assert started.returncode == 0, started.stderr
        story = Story(federation)
        story.tell()
        yield story
    finally:
        federation.call("down")


def test_two_runs_at_once_sum_every_round_of_all_sites(story: Story) -> None:
    for run, rounds in AT_ONCE.items():
        assert [event["accepted"] for event in story.rounds(run)] == [SITES] * rounds
        for site in SITES:
            made = histories(facts_of(story.ledger(site)), run)
            assert made == {n: ["reserved", "sealed", "sent"] for n in range(1, rounds + 1)}


def test_no_part_is_seen_twice(story: Story) -> None:
    """Neither by two sites nor in two rounds or runs: each is uniform by itself."""
    seals = [
        fact.body["payload"]
        for site in SITES
        for fact in facts_of(story.ledger(site))
        if fact.kind == "sealed"
    ]
    assert len(seals) == len(set(seals)) > len(SITES) * sum(AT_ONCE.values())


def test_a_killed_site_loses_a_round_and_joins_again(story: Story) -> None:
    """The lost round is charged to those who answered it, and a spare one takes its place."""
    rounds = story.rounds("killed")
    lost = [event for event in rounds if not event["accepted"]]
    assert [event["round"] for event in lost] == [story.broken]
    assert list(lost[0]["rejected"]) == [VICTIM]
    assert sum(bool(event["accepted"]) for event in rounds) == ROUNDS
    assert len(rounds) == ROUNDS + 1
    others = [site for site in SITES if site != VICTIM]
    sets = [event["accepted"] for event in rounds]
    assert sets[story.broken] == others
    assert sets[-1] == SITES
    # Out of the sums once, and back once.
    assert [k for k, _ in itertools.groupby(sets) if k] == [SITES, others, SITES]
    made = histories(facts_of(story.ledger(STEADY)), "killed")
    assert made[story.broken][:2] == ["reserved", "sealed"]


@pytest.mark.parametrize("site", SITES)
def test_no_ledger_is_charged_less_than_it_released(story: Story, site: str) -> None:
    assert "entries verified" in site_says(story.federation.profile(site), "ledger")
    report = json.loads(site_says(story.federation.profile(site), "report", "--json"))
    assert [run["run-id"] for run in report["runs"]][-1] == "killed"
    for run in report["runs"]:
        assert run["noise-promise"]["members"] == len(SITES)
        assert "against the server and any 1 of the 3 others: ε" in run["noise-promise"]["sentence"]
    facts = facts_of(story.ledger(site))
    plans = {f.body["run_id"]: json.loads(f.body["plan"]) for f in facts if f.kind == "plan"}
    for run, plan in plans.items():
        released = {n for n, kinds in histories(facts, run).items() if "sealed" in kinds}
        assert {e["round"] for e in story.rounds(run) if site in e["accepted"]} <= released
        assert len(released) <= len(plan["steps"])


def test_keys_are_their_owners_alone_and_in_no_log(story: Story) -> None:
    folder = story.federation.folder
    keys = sorted(folder.glob("sites/*/ledger/*.peers/own.key"))
    assert len(keys) == len(SITES)
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    private = [key.read_text().split()[1] for key in keys]
    logs = [path.read_text(errors="replace") for path in (folder / "logs").iterdir()]
    assert not [key for key in private for log in logs if key in log]


def test_the_journal_says_whom_the_promise_is_against(story: Story) -> None:
    events = read_journal(story.federation.home / "runs" / "killed" / "journal.jsonl")
    (said,) = [event for event in events if event["event"] == "privacy"]
    assert (said["members"], said["colluders"]) == (len(SITES), 1)
    assert "epsilon" not in said
