"""A ledger that is missing, damaged, an old copy or none at all is refused; so is a full disk."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger import hash_chain as chain
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.locks import alone_in
from tests.hdpfl_flower.ledger.releases import (
    PLAN,
    ask,
    open_ledger,  # noqa: F401
    release,
    small_ledger,  # noqa: F401
)


def test_only_create_makes_a_ledger_and_only_once(tmp_path: Path, path: Path) -> None:
    with pytest.raises(LedgerError, match="ledger --init"):
        Ledger(tmp_path / "none.sqlite")
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path, 99.0, 1e-5)
    assert Ledger(path).account().cap_epsilon == 3.0
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_deleted_ledger_is_not_made_anew_beside_its_anchor(tmp_path: Path) -> None:
    """A new one would forget what was spent."""
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "anchor"
    Ledger.create(path, 3.0, 1e-5, anchor).close()
    path.unlink()
    with pytest.raises(LedgerError, match="anchor exists already"):
        Ledger.create(path, 3.0, 1e-5, anchor)
    with pytest.raises(LedgerError, match="cannot be"):
        Ledger.create(tmp_path / "other.sqlite", 3.0, 1e-5, tmp_path / "no-folder" / "anchor")
    assert not (tmp_path / "other.sqlite").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "UPDATE entries SET body = replace(body, '1.0', '0.1') WHERE kind = 'plan'",
            "damaged at entry 2",
        ),
        ("DELETE FROM entries WHERE kind = 'plan'", "damaged"),
    ],
    ids=["changed", "dropped"],
)
def test_an_altered_entry_is_found_out(ledger: Ledger, path: Path, change: str, said: str) -> None:
    release(ledger, ask())
    ledger.close()
    with sqlite3.connect(path) as db:
        db.execute(change)
    with pytest.raises(LedgerError, match=said):
        Ledger(path)


def test_a_changed_payload_is_found_out(ledger: Ledger, path: Path) -> None:
    release(ledger, ask())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE blobs SET blob = x'00'")
    with pytest.raises(LedgerError, match="does not match its seal"):
        ledger.reserve(ask(), PLAN)


def test_an_old_copy_is_found_out_by_the_anchor(tmp_path: Path) -> None:
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "elsewhere" / "anchor"
    anchor.parent.mkdir()
    ledger = Ledger.create(path, 3.0, 1e-5, anchor)
    ledger.close()
    old = path.read_bytes()
    ledger = Ledger(path, anchor)
    release(ledger, ask())
    ledger.close()
    path.write_bytes(old)
    assert Ledger(path).account().spent() == (0.0, 0.0), "without the anchor nobody could tell"
    with pytest.raises(LedgerError, match="older than its anchor"):
        Ledger(path, anchor)
    anchor.unlink()
    with pytest.raises(LedgerError, match=r"anchor .* is missing"):
        Ledger(path, anchor)


def test_a_slow_process_keeps_the_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a commit and its anchor another process commits, and names a later entry."""
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "anchor"
    slow, quick = Ledger.create(path, 5.0, 1e-5, anchor), Ledger(path, anchor)
    first, real = iter([True]), chain._raise_anchor

    def late(*named: Any) -> None:
        if next(first, False):
            release(quick, ask(server_round=2))
        real(*named)

    monkeypatch.setattr(chain, "_raise_anchor", late)
    slow.raise_cap(6.0, 1e-5)
    assert json.loads(anchor.read_text())[0] == quick._chain._last


def test_a_folder_kept_locked_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was charged stays charged: its entry was durable before."""
    path, anchor = tmp_path / "ledger.sqlite", tmp_path / "anchor"
    ledger = Ledger.create(path, 3.0, 1e-5, anchor)
    monkeypatch.setattr(chain, "PATIENCE", 0.05)
    with alone_in(tmp_path, 0), pytest.raises(LedgerError, match="cannot be locked"):
        ledger.reserve(ask(), PLAN)
    assert Ledger(path, anchor).account().spent() == (1.0, 1e-6)
    assert release(ledger, ask(server_round=2)) == b"noisy"


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all, but long enough to be one", b"SQLite format 3\x00"]
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(LedgerError) as error:
        Ledger(path)
    assert "\n" not in str(error.value)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE entries (x)")
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(tmp_path / "other.sqlite")


def test_failed_writes_change_no_account(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no lock")

    with monkeypatch.context() as patch:
        patch.setattr("hdpfl_flower.ledger.site_ledger.ReleaseLock", fail)
        with pytest.raises(OSError, match="no lock"):
            ledger.reserve(ask(), PLAN)
    assert ledger.account().spent() == (0.0, 0.0)
    assert release(ledger, ask()) == b"noisy"
    assert ledger.account().spent() == (1.0, 1e-6)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a way to fill a disk")
def test_a_full_disk_refuses_before_any_work(ledger: Ledger, path: Path) -> None:
    """SQLite is told that the file may not grow: the same error as a full disk."""
    ledger._chain._db.execute("PRAGMA max_page_count = 4")
    with pytest.raises(LedgerError, match="disk is full"):
        for run in range(100):
            release(
                ledger, ask(f"{run}" * 50), b"x" * 5000, plan=ChargedPlan("{}", "{}", 0.001, 1e-9)
            )
    fresh = Ledger(path)
    assert all(r.status != "sent" or r.payload_digest for r in fresh.account().releases.values())
