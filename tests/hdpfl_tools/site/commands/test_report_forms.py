"""``hdpfl-site report``: its forms, its file, and the ledger's file alone."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

KEYS = {
    "": "ledger cap spent left notes runs updates metrics-released exact-answers "
    "clipped-updates-opted-out clipped-updates-released releases sums trusted-server no-privacy "
    "simulation disclosed reply-after promise assumptions not-covered stays closed-runs "
    "released tuned-runs composition order full site made exact-releases decisions "
    "declared-records withdrawn",
    "ledger": "path entries digest from to anchor cap-raised-on",
    "promise": "unit relation adversary private-epsilon row absent",
    "runs": "run-id charged strategy rounds epsilon delta plan unit updates metrics-released "
    "closed share coordinator purpose noise-promise",
    "sums": "unit relation runs epsilon delta with-all-records attacker-finds",
    "trusted-server": "runs epsilon",
    "releases": "run-id round kind status at payload",
    "assumptions": "name claim how status failures",
    "plan": "models releases schedule noise-multiplier sensitivity divisor epsilon-pld epsilon-rdp",
    "schedule": "rounds steps sampling-prob noise-factor",
}
"""Keys that a program may rely on: a renamed one breaks archives."""


def facts(result) -> dict:
    assert result.code == 0, result.err
    return json.loads(result.out)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_keys_of_the_json_are_these(opened) -> None:
    opened.charge("run-1", rounds=1)
    report = facts(opened("report", "--json"))
    plan = report["runs"][0]["plan"]
    places = report | {"": report, "plan": plan, "schedule": plan["schedule"]}
    for name, keys in KEYS.items():
        rows = places[name] if isinstance(places[name], list) else [places[name]]
        assert rows and all(set(row) == set(keys.split()) for row in rows), name


def test_the_digest_is_that_of_the_anchor(opened) -> None:
    opened.charge("run-1", rounds=2)
    ledger = facts(opened("report", "--json"))["ledger"]
    anchor = json.loads((opened.folder / "anchor" / "ledger.anchor").read_text())
    assert [ledger["entries"], ledger["digest"]] == anchor


def test_every_release_is_listed(opened) -> None:
    opened.charge("run-1", rounds=2)
    opened.charge("run-1", rounds=1, kind="metrics")
    releases = facts(opened("report", "--json"))["releases"]
    hashed = hashlib.sha256(b"payload").hexdigest()[:12]
    assert [(r["round"], r["kind"], r["status"], r["payload"]) for r in releases] == [
        (1, "update", "sent", hashed),
        (2, "update", "sent", hashed),
        (1, "metrics", "sent", hashed),
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d", row["at"]) for row in releases)


def test_a_report_in_a_file_belongs_to_its_owner_alone(opened) -> None:
    opened.charge("run-1", rounds=1)
    path = opened.folder / "report.html"
    result = opened("report", "--html", "--out", path)
    assert result.code == 0
    assert result.out == f"wrote {path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == opened("report", "--html").out
    path.write_text("an older report")
    assert "--force" in opened("report", "--out", path).error()
    assert path.read_text() == "an older report"
    assert opened("report", "--out", path, "--force").code == 0
    assert path.read_text().startswith("PRIVACY REPORT")


# The ledger's file alone.


def test_the_ledger_alone_gives_the_same_numbers_and_is_only_read(opened) -> None:
    opened.charge("run-1", rounds=2)
    with_profile = facts(opened("report", "--json"))
    copy = opened.folder / "evidence" / "ledger.sqlite"
    copy.parent.mkdir()
    shutil.copy(opened.ledger_path, copy)
    copy.chmod(0o400)
    before = contents(copy.parent)
    alone = facts(opened.bare("report", "--ledger", copy, "--json"))
    for form in ((), ("--html",)):
        assert opened.bare("report", "--ledger", copy, *form).code == 0
    assert contents(copy.parent) == before
    for key in ("cap", "spent", "left", "runs", "updates", "releases", "metrics-released"):
        assert alone[key] == with_profile[key], key
    assert alone["ledger"]["digest"] == with_profile["ledger"]["digest"]
    assert alone["simulation"] is None
    assert alone["disclosed"] is None
    assert any("What only the profile says" in line for line in alone["not-covered"])
    status = {row["name"]: row["status"] for row in alone["assumptions"]}
    assert status["anchor"] == "not checked"


def test_a_transaction_that_was_broken_off_is_not_counted(opened) -> None:
    """The copy takes SQLite's journal along: without it, half a transaction would be read."""
    opened.charge("run-1", rounds=1)
    path = opened.ledger_path
    expected = facts(opened.bare("report", "--ledger", path, "--json"))["ledger"]["digest"]
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")  # spills into the file before the end
        db.execute("PRAGMA cache_spill = 1")
        db.execute("BEGIN IMMEDIATE")
        db.execute("DELETE FROM entries WHERE seq > 2")
        db.execute("CREATE TABLE filler (x)")
        db.execute("INSERT INTO filler SELECT randomblob(4000) FROM entries, entries AS b")
        crashed = opened.folder / "crashed" / "ledger.sqlite"
        crashed.parent.mkdir()
        shutil.copy(path, crashed)
        shutil.copy(f"{path}-journal", f"{crashed}-journal")
        db.execute("ROLLBACK")
    report = facts(opened.bare("report", "--ledger", crashed, "--json"))
    assert report["ledger"]["digest"] == expected


@pytest.mark.parametrize("alone", [True, False])
def test_a_ledger_of_a_newer_version_is_refused_and_left_as_it_is(opened, alone: bool) -> None:
    opened.charge("run-1", rounds=1)
    with closing(sqlite3.connect(opened.ledger_path)) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
    before = contents(opened.folder)
    out = opened.folder / "report.html"
    which = ("--ledger", opened.ledger_path) if alone else ("--profile", opened.profile_path)
    result = opened.bare("report", *which, "--html", "--out", out)
    assert "newer version" in result.error()
    assert not result.out
    assert contents(opened.folder) == before
