"""The disk is full: one constant line, no release handed out, and the ledger works again.

Two ways to fill it that need no file system of our own: the kernel lets no file grow beyond a
limit, and SQLite lets no database grow beyond a number of pages.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.ledger import Ledger
from tests.crash.checker import Checker, read_notes
from tests.crash.harness import SIGKILL, Workers, ask, new_site

SIZE = 70_000
ONE_LINE = (
    "ledger: the disk is full; free some space",
    "ledger: the disk cannot be read or written; check it",
    "the ledger's anchor {anchor} cannot be written: File too large",
)
LIMITS = sorted(
    {0, 50, 100, 511, 1024, *range(4096, 130_000, 16_384), *range(16_384, 24_576, 2048)}
)


def fill_and_free(
    workers: Workers, folder: Path, limit: int, point: str = "", mutant: str = ""
) -> str:
    """Answer with files limited to ``limit`` bytes, then without; return when it failed.

    Without the limit, the ledger grows from 16 KiB to 120 KiB.
    """
    site = new_site(folder)
    checker, key = Checker(site), ("a", 2, "update")
    before = ask(server_round=1)
    full = {**ask(server_round=2, size=SIZE), "limit": limit}
    _, said = workers.answer(site, before, full, mutant=mutant).said
    if "failed" in said:
        assert said["failed"] in [line.format(anchor=site / "anchor") for line in ONE_LINE]
        assert key not in read_notes(site / "seen")
    books = checker.look()
    again, later = workers.answer(site, full | {"limit": None}, ask(server_round=3)).said
    after = checker.look()
    assert "payload" in later
    if after.history[key] == ["reserved", "lost"]:
        assert "lost" in again.get("declined", "")
        return "at work"
    assert "payload" in again
    if "payload" in said:
        assert again == said
        return "never"
    return "at first" if key not in books.history else "when sealed"


def test_files_that_cannot_grow(workers: Workers, folder: Path) -> None:
    """Every limit is met: no reservation, no seal, or no difference."""
    met = {fill_and_free(workers, folder / str(limit), limit) for limit in LIMITS}
    assert {"at first", "at work", "never"} <= met


def test_what_is_handed_out_on_a_full_disk_is_found(workers: Workers, folder: Path) -> None:
    """The mutant sends, then seals."""
    limit = 60_000
    assert fill_and_free(workers, folder / "right", limit) == "at work"
    with pytest.raises(AssertionError):
        fill_and_free(workers, folder / "wrong", limit, mutant="sealed_after_it_was_sent")


def test_a_worker_killed_on_a_full_disk(workers: Workers, folder: Path) -> None:
    site = new_site(folder / "site")
    checker = Checker(site)
    full = {**ask(size=SIZE), "limit": 60_000}
    assert workers.answer(site, full, point="seal: sealed appended").killed == SIGKILL
    checker.look()
    (again,) = workers.answer(site, full).said
    assert "lost" in again["declined"]
    checker.look()


def test_a_database_that_cannot_grow(folder: Path) -> None:
    """The same open ledger goes on when there is space again."""
    request, plan = Request("a", 1, "update", "d"), ChargedPlan("{}", "{}", 0.1, 1e-6)
    failed = 0
    for pages in range(30):
        path = folder / f"{pages}.sqlite"
        ledger = Ledger.create(path, 1.0, 1e-5)
        db = ledger._chain._db
        (now,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {now + pages}")
        try:
            with ledger.reserve(request, plan) as taken:  # type: ignore[union-attr]
                taken.seal(b"x" * SIZE)
        except LedgerError as error:
            failed += 1
            assert str(error) == ONE_LINE[0]
            assert not ledger.account().releases[request.key].payload_digest
        db.execute("PRAGMA max_page_count = 1000000")
        assert ledger.account() == Ledger(path).account()
        assert ledger.account().spent() == (0.1, 1e-6)
        try:
            assert ledger.reserve(request, plan) == b"x" * SIZE
        except Declined as reason:
            assert "lost" in str(reason)
        with ledger.reserve(Request("a", 2, "update", "d"), plan) as taken:  # type: ignore[union-attr]
            taken.seal(b"later")
    assert 10 < failed < 30
