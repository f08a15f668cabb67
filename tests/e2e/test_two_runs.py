"""Two runs that begin within a second at the same sites: each has its own terms, to its end."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.monitoring.journal import read_journal
from tests.e2e.engines import Done, Federation, free_ports, rounds_of, to_toml
from tests.e2e.faults import HEART, facts_of, histories, site_says, write_hospital

pytestmark = [pytest.mark.engines, pytest.mark.wards]

SITES = ("va", "hungarian")
RUNS = {
    "first": {**HEART, "run-id": "first", "rounds": 3, "min-sites": 2, "purpose": "A"},
    "second": {**HEART, "run-id": "second", "rounds": 2, "min-sites": 2, "purpose": "B"},
}


def start(federation: Federation, name: str, terms: dict[str, Any]) -> subprocess.Popen[str]:
    path = federation.home / f"{name}.toml"
    path.write_text(to_toml(terms))
    return subprocess.Popen(
        federation.command("run", path), env=federation.environment, cwd=federation.home,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_runs_at_once_keep_their_terms_and_every_ledger_is_right(tmp_path: Path) -> None:
    for name in SITES:
        write_hospital(tmp_path / "sites" / name, name, {})
    federation = Federation(tmp_path, free_ports(len(SITES) + 1))
    begun: dict[str, subprocess.Popen[str]] = {}
    ended: dict[str, Done] = {}
    try:
        started = federation.call("up", "--sites", tmp_path / "sites")
        assert started.returncode == 0, started.stderr
        at = time.monotonic()
        for name, terms in RUNS.items():
            begun[name] = start(federation, name, terms)
        assert time.monotonic() - at < 1
        for name, run in begun.items():
            out, err = run.communicate(timeout=500)
            ended[name] = subprocess.CompletedProcess([], run.returncode, out, err)
    finally:
        for run in begun.values():
            run.kill()
        federation.call("down")
    for name, terms in RUNS.items():
        assert ended[name].returncode == 0, ended[name].stdout + ended[name].stderr
        assert f"run {name} has started" in ended[name].stdout
        folder = tmp_path / "runs" / name
        (first,) = (
            e for e in read_journal(folder / "journal.jsonl") if e["event"] == "run-started"
        )
        assert {key: first["terms"][key] for key in terms} == terms
        assert [sorted(event["accepted"]) for event in rounds_of(folder)] == [
            sorted(SITES)
        ] * terms["rounds"]
    for site in SITES:
        profile = federation.profile(site)
        assert "entries verified" in site_says(profile, "ledger")
        report = json.loads(site_says(profile, "report", "--json"))
        assert sorted(run["run-id"] for run in report["runs"]) == sorted(RUNS)
        facts = facts_of(profile.parent / "ledger" / "ledger.sqlite")
        for name, terms in RUNS.items():
            made = histories(facts, name)
            for number in range(1, terms["rounds"] + 1):
                assert made[number] == ["reserved", "sealed", "sent"]
