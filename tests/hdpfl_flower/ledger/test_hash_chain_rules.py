"""The chain's rules one by one: what a digest covers, what an anchor says, who waits for whom."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import hdpfl_flower.ledger.hash_chain as module
import hdpfl_flower.ledger.new_chain as new_chain
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.formats import LEDGER
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.new_chain import create_chain


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return create_chain(tmp_path / "inner" / "chain.sqlite", tmp_path / "anchor")


def fill(chain: Chain, *kinds: str) -> None:
    for kind in kinds:
        with chain.transaction():
            chain.append(kind, {"of": kind})


def test_a_new_file_is_its_owners_and_says_what_it_is(chain: Chain, tmp_path: Path) -> None:
    path = tmp_path / "inner" / "chain.sqlite"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA application_id").fetchone() == (0x48445046,)
    assert db.execute("PRAGMA user_version").fetchone() == (LEDGER.newest,)
    assert db.execute("SELECT * FROM head").fetchall() == [(0, "0" * 64)]
    assert json.loads((tmp_path / "anchor").read_text()) == [0, "0" * 64]


def test_neither_a_file_nor_an_anchor_is_made_twice(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="exists already"):
        create_chain(tmp_path / "inner" / "chain.sqlite")
    with pytest.raises(LedgerError, match="exists already"):
        create_chain(tmp_path / "other.sqlite", tmp_path / "anchor")
    assert not (tmp_path / "other.sqlite").exists()


def test_a_digest_covers_all_of_an_entry_and_what_came_before() -> None:
    parts = ["0" * 64, 1, "2024-01-01", "cap", "{}"]
    right = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    assert module._digest(*parts) == right  # type: ignore[arg-type]
    for i, other in enumerate(["1" * 64, 2, "2024-01-02", "plan", "[]"]):
        changed = [*parts[:i], other, *parts[i + 1 :]]
        assert module._digest(*changed) != right  # type: ignore[arg-type]


def test_entries_follow_each_other_and_come_once(chain: Chain, tmp_path: Path) -> None:
    fill(chain, "a", "b")
    with chain.transaction() as new:
        assert new == []
    with Chain(tmp_path / "inner" / "chain.sqlite").transaction() as all_:
        assert [(e.seq, e.kind, e.body) for e in all_] == [
            (1, "a", {"of": "a"}),
            (2, "b", {"of": "b"}),
        ]
    digest = chain._db.execute("SELECT digest FROM entries WHERE seq = 2").fetchone()[0]
    assert chain._db.execute("SELECT * FROM head").fetchall() == [(2, digest)]
    assert json.loads((tmp_path / "anchor").read_text()) == [2, digest]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE entries SET body = '{}' WHERE seq = 1",
        "UPDATE entries SET kind = 'x' WHERE seq = 2",
        "UPDATE entries SET at = 'x' WHERE seq = 1",
        "UPDATE entries SET digest = 'x' WHERE seq = 2",
        "UPDATE entries SET seq = 5 WHERE seq = 2",
        "UPDATE entries SET seq = 5 WHERE seq = 2; UPDATE head SET seq = 5",
        "DELETE FROM entries WHERE seq = 1",
        "DELETE FROM entries WHERE seq = 2",
        "UPDATE head SET seq = 1",
        "UPDATE head SET digest = 'x'",
        "DELETE FROM head",
    ],
)
def test_any_change_of_the_file_is_found(chain: Chain, tmp_path: Path, damage: str) -> None:
    fill(chain, "a", "b")
    path = tmp_path / "inner" / "chain.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(damage)
    with pytest.raises(LedgerError, match="damaged"), Chain(path).transaction():
        pass


@pytest.mark.parametrize(
    "pragma", ["application_id = 5", "user_version = 0", f"user_version = {LEDGER.newest + 1}"]
)
def test_files_of_other_kinds_are_left_alone(chain: Chain, tmp_path: Path, pragma: str) -> None:
    path = tmp_path / "inner" / "chain.sqlite"
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA {pragma}")
    with pytest.raises(LedgerError, match=r"not a ledger of hdpfl|no version wrote|newer version"):
        Chain(path)


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "[1]", '[1, "a", 2]', '["1", "a"]', "[1, 2]", '[-1, "a"]', '[1.5, "a"]',
     f'[{2**63}, "a"]', '{"1": "a"}'],
)  # fmt: skip
def test_an_anchor_that_says_anything_else_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "anchor").write_text(text)
    with pytest.raises(LedgerError, match="missing or damaged"):
        module._read_anchor(tmp_path / "anchor")
    (tmp_path / "anchor").write_text(f'[{2**63 - 1}, "a"]')
    assert module._read_anchor(tmp_path / "anchor") == (2**63 - 1, "a")
    (tmp_path / "anchor").write_text('[0, "a"]')
    assert module._read_anchor(tmp_path / "anchor") == (0, "a")


def test_an_anchor_only_rises(chain: Chain, tmp_path: Path) -> None:
    fill(chain, "a", "b", "c")
    before = (tmp_path / "anchor").read_text()
    for seq in (1, 3):
        module._raise_anchor(tmp_path / "anchor", seq, "other")
        assert (tmp_path / "anchor").read_text() == before
    module._raise_anchor(tmp_path / "anchor", 4, "other")
    assert json.loads((tmp_path / "anchor").read_text()) == [4, "other"]


def test_older_and_foreign_files_miss_the_anchor(chain: Chain, tmp_path: Path) -> None:
    path, anchor = tmp_path / "inner" / "chain.sqlite", tmp_path / "anchor"
    fill(chain, "a")
    old = path.read_bytes()
    fill(chain, "b")
    chain.close()
    Chain(path, anchor).close()
    path.write_bytes(old)
    with pytest.raises(LedgerError, match="older than its anchor"):
        Chain(path, anchor)
    anchor.write_text(json.dumps([0, "1" * 64]))
    with pytest.raises(LedgerError, match="older than its anchor"):
        Chain(path, anchor)
    anchor.write_text(json.dumps([0, "0" * 64]))
    Chain(path, anchor).close()


def test_what_fails_is_undone_and_every_entry_comes_again(chain: Chain) -> None:
    fill(chain, "a")
    with pytest.raises(ZeroDivisionError), chain.transaction():
        chain.append("b", {})
        chain.attach(2, b"blob")
        raise ZeroDivisionError
    assert chain.blob(2) is None
    with chain.transaction() as again:
        assert [entry.kind for entry in again] == ["a"]


def test_blobs_are_kept_until_they_are_dropped(chain: Chain) -> None:
    fill(chain, "a", "b")
    with chain.transaction():
        chain.attach(1, b"one")
        chain.attach(2, b"")
    assert (chain.blob(1), chain.blob(2), chain.blob(3)) == (b"one", b"", None)
    assert (chain.blob_size(1), chain.blob_size(2), chain.blob_size(3)) == (3, 0, None)
    with chain.transaction():
        chain.drop_blobs([1])
    assert (chain.blob(1), chain.blob(2)) == (None, b"")


def test_durability_is_what_was_asked_for(tmp_path: Path) -> None:
    for durable, expected in ((True, (3, "delete")), (False, (0, "memory"))):
        path = tmp_path / f"{durable}.sqlite"
        for opened in (create_chain(path, durable=durable), Chain(path, durable=durable)):
            synchronous = opened._db.execute("PRAGMA synchronous").fetchone()[0]
            journal = opened._db.execute("PRAGMA journal_mode").fetchone()[0]
            assert (synchronous, journal) == expected
            opened.close()
    assert create_chain(tmp_path / "c.sqlite")._db.execute("PRAGMA synchronous").fetchone() == (3,)
    assert Chain(tmp_path / "c.sqlite")._db.execute("PRAGMA synchronous").fetchone() == (3,)


def test_one_process_waits_for_the_other(chain: Chain, tmp_path: Path) -> None:
    other = Chain(tmp_path / "inner" / "chain.sqlite", tmp_path / "anchor")
    held = threading.Event()

    def hold() -> None:
        with other.transaction():
            held.set()
            time.sleep(0.3)
            other.append("first", {})

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(5)
    with chain.transaction() as new:
        assert [entry.kind for entry in new] == ["first"]
    thread.join()


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("database or disk is full", "free some space"),
        ("disk I/O error", "check it"),
        ("database is locked", "another process holds it; try again"),
        ("attempt to write a readonly database", "read-only; check its permissions"),
        ("unable to open database file", "check its folder and permissions"),
        ("database disk image is malformed", "restore it from a backup"),
    ],
)
def test_what_sqlite_says_becomes_a_line_with_a_remedy(said: str, remedy: str) -> None:
    with pytest.raises(LedgerError, match=remedy) as caught, module.readable_errors():
        raise sqlite3.OperationalError(said)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="create it: hdpfl-site ledger --init"):
        Chain(tmp_path / "none.sqlite")
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be created"):
        create_chain(tmp_path / "file" / "chain.sqlite")
    with pytest.raises(LedgerError, match="cannot be written"):
        module.write_anchor(tmp_path / "file" / "anchor", 0, "")


def test_a_file_appearing_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chain.sqlite"
    path.write_text("of another process")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with pytest.raises(LedgerError, match="cannot be created"):
        create_chain(path)
    assert path.read_text() == "of another process"


@pytest.mark.parametrize("call", ["connect", "link"])
def test_a_crash_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """An empty file of that name would be no ledger, and nobody could make one."""
    path = tmp_path / "chain.sqlite"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3 if call == "connect" else os, call, killed)
        with pytest.raises(KeyboardInterrupt):
            create_chain(path)
    assert not path.exists()
    try:
        fill(create_chain(path), "a")
    except LedgerError as error:
        pytest.fail(f"what the crash left stands in the way: {error}")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["chain.sqlite"]


@pytest.mark.parametrize("durable", [True, False])
def test_names_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    waited: list[tuple[Path, bool]] = []
    path = tmp_path / "chain.sqlite"
    monkeypatch.setattr(new_chain, "sync", lambda folder: waited.append((folder, path.exists())))
    create_chain(path, durable=durable)
    assert waited == ([(tmp_path, True)] if durable else [])


def test_ledgers_need_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    fill(create_chain(tmp_path / "chain.sqlite"), "a")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["chain.sqlite"]
    with pytest.raises(LedgerError, match="exists already"):
        create_chain(tmp_path / "chain.sqlite")


def test_an_entry_has_the_time_that_was_given_or_now(chain: Chain) -> None:
    before = datetime.now(UTC)
    with chain.transaction():
        given = chain.append("a", {}, "2020-01-01T00:00:00.000+00:00")
        now = chain.append("b", {})
    assert given.at == "2020-01-01T00:00:00.000+00:00"
    assert abs(datetime.fromisoformat(now.at) - before) < timedelta(minutes=1)


def test_an_older_copy_is_found_by_a_process_that_has_it_open(chain: Chain, tmp_path: Path) -> None:
    path = tmp_path / "inner" / "chain.sqlite"
    fill(chain, "a")
    old = path.read_bytes()
    fill(chain, "b")
    with pytest.raises(ZeroDivisionError), chain.transaction():
        raise ZeroDivisionError
    path.write_bytes(old)
    with pytest.raises(LedgerError, match="older than its anchor"), chain.transaction():
        pass


def test_an_anchor_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[bool] = []
    monkeypatch.setattr(
        module, "replace_file", lambda *_, durable=False, **__: waits.append(durable)
    )
    module.write_anchor(tmp_path / "anchor", 0, "")
    assert waits == [True]


def test_a_closed_chain_is_used_no_more(chain: Chain) -> None:
    chain.close()
    with pytest.raises(LedgerError):
        chain.blob(1)
