"""Sites with real ledgers, and what a test does to a federation: kill, stop, fill, cut off."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdpfl_flower.errors import DataError
from hdpfl_flower.monitoring.journal import Event
from tests.e2e.engines import BIN, ROOT, Federation, command_of, processes, rounds_of

DEMO = ROOT / "deploy" / "demo"
PATIENCE = 600.0
HEART: dict[str, Any] = {
    "dataset": "site", "schema": "heart", "model": "logreg", "evaluation": "none",
    "learning-rate": 0.2, "local-steps": 1000,
}  # fmt: skip
"""Terms under which a site's work takes seconds, so that a signal can meet it."""


@dataclass(frozen=True)
class Fact:
    """One entry of a ledger."""

    seq: int
    kind: str
    body: dict[str, Any]
    digest: str


def wait_until(what: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until ``what()`` is true; raises ``TimeoutError`` where it does not come."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came in {seconds:g} s")
        time.sleep(0.05)


def rounds_so_far(folder: Path) -> list[Event]:
    """Return the rounds in a run's journal; none where there is no journal yet."""
    try:
        return rounds_of(folder)
    except DataError:
        return []


def wait_for_round(folder: Path, number: int) -> None:
    """Wait until the journal tells of so many rounds."""
    wait_until(lambda: len(rounds_so_far(folder)) >= number)


def signal_site(federation: Federation, site: str, number: signal.Signals) -> None:
    """Send a signal to the SuperNode of ``site`` and to all that it started, its session's end."""
    for pid in family(federation, site):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def pid_of(federation: Federation, name: str) -> int:
    """Return the process of a SuperNode, or of the SuperLink."""
    note = json.loads((federation.folder / "pids" / f"{name}.json").read_text())
    return int(note["pid"])


def family(federation: Federation, name: str) -> dict[int, str]:
    """Return the process of a member and all that descend from it, with their births."""
    return processes._family([pid_of(federation, name)])


def started_by(federation: Federation, name: str, program: str) -> list[int]:
    """Return the processes below a member that run ``program``."""
    return [pid for pid in family(federation, name) if program in command_of(pid)]


def write_hospital(folder: Path, name: str, changes: dict[str, str]) -> None:
    """Write a hospital of the demo: production profile, records; texts of the profile changed."""
    folder.mkdir(parents=True)
    text = (DEMO / name / "profile.toml").read_text()
    for former, new in {"[training]": "[training]\ntorch-threads = 1", **changes}.items():
        assert former in text, former
        text = text.replace(former, new)
    (folder / "profile.toml").write_text(text)
    (folder / "profile.toml").chmod(0o600)
    shutil.copyfile(DEMO / name / "data.csv", folder / "data.csv")


def facts_of(ledger: Path) -> list[Fact]:
    """Return a ledger's entries as they stand in the file."""
    uri = f"{ledger.as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30)) as db:
        rows = db.execute("SELECT seq, kind, body, digest FROM entries ORDER BY seq").fetchall()
    return [Fact(seq, kind, json.loads(body), digest) for seq, kind, body, digest in rows]


def locks_of(ledger: Path) -> set[str]:
    """Return the locks of releases: those that are worked on, and one of work that was killed."""
    locks = ledger.with_name(ledger.name + ".locks")
    return {path.name for path in locks.iterdir()} if locks.is_dir() else set()


def wait_for_work(ledger: Path) -> None:
    """Wait until a release of this ledger is being worked on that was not yet, before."""
    before = locks_of(ledger)
    wait_until(lambda: locks_of(ledger) - before)


def histories(facts: list[Fact], run_id: str) -> dict[int, list[str]]:
    """Return what became of each release of a run: round → the kinds of its entries, in order."""
    rounds: dict[int, list[str]] = {}
    taken: dict[int, int] = {}
    for fact in facts:
        if fact.kind == "reserved" and fact.body["run_id"] == run_id:
            taken[fact.seq] = fact.body["round"]
            rounds.setdefault(fact.body["round"], []).append("reserved")
        elif fact.body.get("release") in taken:
            rounds[taken[fact.body["release"]]].append(fact.kind)
    return rounds


def broke_off(history: list[str]) -> bool:
    """Return whether a release was taken and nothing of it left; a run's end calls it lost."""
    return history in (["reserved"], ["reserved", "lost"])


def site_says(profile: Path, *words: str) -> str:
    """Return what a command of ``hdpfl-site`` prints for a site; it must end well."""
    command = [str(BIN / "hdpfl-site"), *words, "--profile", str(profile)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_books(profile: Path, ledger: Path, run_id: str, accepted: set[int]) -> None:
    """Assert that a ledger verifies: one charge of the run, and no release beside its entries.

    Args:
        profile: the site's.
        ledger: its file.
        run_id: the run.
        accepted: the rounds in which the server used its update.
    """
    assert "entries verified" in site_says(profile, "ledger")
    report = json.loads(site_says(profile, "report", "--json"))
    assert [run["run-id"] for run in report["runs"]] == [run_id]
    facts = facts_of(ledger)
    (plan,) = [fact for fact in facts if fact.kind == "plan"]
    (run,) = report["runs"]
    assert (run["epsilon"], run["delta"]) == (plan.body["epsilon"], plan.body["delta"])
    assert report["full"] > 0
    released = {n for n, kinds in histories(facts, run_id).items() if "sealed" in kinds}
    assert accepted <= released
    assert len(released) <= json.loads(plan.body["plan"])["last_round"]
    payloads = [fact.body["payload"] for fact in facts if fact.kind == "sealed"]
    assert len(payloads) == len(set(payloads)) == len(released)


def lines_with(text: str, pattern: str) -> list[str]:
    """Return the lines of a log in which ``pattern`` is found."""
    return [line for line in text.splitlines() if re.search(pattern, line)]
