"""Bytes of the file flipped, cut off or from a newer version: refused, or the same account.

Never an account that says less than before, and never another error than ``LedgerError``.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.formats import LEDGER
from hdpfl_flower.ledger.account import Account, ChargedPlan, Request
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.ledger import Ledger

PAGE = 4096
PLAN = ChargedPlan("{}", "{}", epsilon=0.1, delta=1e-7)
BIG, PAYLOAD = Request("run 0", 4, "update", "d"), b"x" * 2**20
Flip = tuple[int, int]
"""A place, and what its byte is xored with."""


def use(path: Path, anchor: Path | None = None, runs: int = 12) -> Ledger:
    """Make a ledger of 10 pages: 12 runs of 3 rounds, with small payloads."""
    ledger = Ledger.create(path, 5.0, 1e-5, anchor)
    for run in range(runs):
        for at in (1, 2, 3):
            request = Request(f"run {run}", at, "update", "d")
            with ledger.reserve(request, PLAN) as taken:  # type: ignore[union-attr]
                taken.seal(b"noisy" * 20)
            ledger.mark_sent(request.key)
    return ledger


class Damaged:
    """Files to damage again and again, each time from the good ones."""

    def __init__(self, files: Iterable[Path], folder: Path, anchored: bool = False) -> None:
        folder.mkdir()
        self.good = {folder / file.name: file.read_bytes() for file in files}
        self.path = folder / "ledger.sqlite"
        self.anchor = folder / "anchor" if anchored else None
        self.right = [self.open()]

    def open(self, **changed: bytes) -> Account:
        """Open the good files, but for the ``changed`` ones (by the end of their names)."""
        for there in self.path.parent.iterdir():
            if there.is_file():
                there.unlink()
        for path, content in self.good.items():
            new = [c for end, c in changed.items() if path.name.endswith(end)]
            path.write_bytes(new[0] if new else content)
        ledger = Ledger(self.path, self.anchor)
        account = ledger.account()
        ledger.close()
        return account

    def flip(self, end: str, flips: Iterable[Flip]) -> Counter[str]:
        """Flip one byte at a time; return how often it was refused, and how often the same."""
        (good,) = [content for path, content in self.good.items() if path.name.endswith(end)]
        outcomes: Counter[str] = Counter()
        for place, bits in flips:
            bad = bytearray(good)
            bad[place] ^= bits
            outcomes[self.outcome(**{end: bytes(bad)})] += 1
        return outcomes

    def outcome(self, **changed: bytes) -> str:
        try:
            account = self.open(**changed)
        except LedgerError as error:
            assert "\n" not in str(error)
            return "refused"
        assert account in self.right, "another account"
        return "the same"


def anywhere(size: int, times: int) -> Iterator[Flip]:
    chance = random.Random(1)
    for _ in range(times):
        yield chance.randrange(size), chance.choice((1 << chance.randrange(8), 255, 128))


def page_headers(size: int, first: int = 0, last: int = 11) -> Iterator[Flip]:
    """Where SQLite says what a page is, how many rows it has (3 and 4) and where they begin."""
    for page in range(0, size, PAGE):
        for place in range((page or 100) + first, (page or 100) + last + 1):
            yield from ((place, bits) for bits in (1, 2, 3, 4, 5, 7, 8, 15, 16, 255))


@pytest.fixture
def damaged(folder: Path) -> Damaged:
    use(folder / "ledger.sqlite").close()
    return Damaged([folder / "ledger.sqlite"], folder / "copy")


def test_bytes_anywhere(damaged: Damaged) -> None:
    outcomes = damaged.flip("sqlite", anywhere(10 * PAGE, 300))
    assert set(outcomes) == {"refused", "the same"}


@pytest.mark.slow
def test_bytes_anywhere_many_times(damaged: Damaged) -> None:
    outcomes = damaged.flip("sqlite", anywhere(10 * PAGE, 5_000))
    assert set(outcomes) == {"refused", "the same"}


def test_numbers_of_rows(damaged: Damaged) -> None:
    outcomes = damaged.flip("sqlite", page_headers(10 * PAGE, 3, 4))
    assert outcomes["refused"] > 100


@pytest.mark.slow
def test_headers_of_pages(damaged: Damaged) -> None:
    outcomes = damaged.flip("sqlite", page_headers(10 * PAGE))
    assert outcomes["refused"] > 100


def test_the_head_finds_hidden_entries(damaged: Damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: with no head, a page that shows fewer rows is an older, valid ledger."""

    def read(self: Chain) -> list[Entry]:
        read_on = self._db.execute("SELECT seq, digest FROM entries ORDER BY seq DESC").fetchone()
        self._db.execute("UPDATE head SET seq = ?, digest = ?", read_on or (0, "0" * 64))
        return inner(self)

    inner = Chain._read
    monkeypatch.setattr(Chain, "_read", read)
    with pytest.raises(AssertionError, match="another account"):
        damaged.flip("sqlite", page_headers(10 * PAGE, 3, 4))


def test_bytes_of_the_anchor(folder: Path) -> None:
    use(folder / "ledger.sqlite", folder / "anchor").close()
    files = [folder / "ledger.sqlite", folder / "anchor"]
    damaged = Damaged(files, folder / "copy", anchored=True)
    size = len((folder / "anchor").read_bytes())
    outcomes = damaged.flip("anchor", ((at, bits) for at in range(size) for bits in (1, 4, 128)))
    assert outcomes["the same"] == 0 or outcomes["refused"] > 100 * outcomes["the same"]
    for text in (b"", b"5", b"null", b"[]", b"{}", b'["5", 5]', b'[-1, "x"]', b'[0, "x"]', b"\xff",
                 b'[5, "x"]', b"[" + b"9" * 40 + b', "x"]'):  # fmt: skip
        assert damaged.outcome(anchor=text) == "refused"


def half_sealed(ledger: Ledger, path: Path) -> tuple[list[Path], Account]:
    """Copy a ledger and its journal in the middle of a seal that does not fit SQLite's cache.

    Returns:
        The copies, and the account as it is when the seal is done.
    """
    copies, attach = path.parent / "half", Chain.attach

    def attach_and_copy(self: Chain, seq: int, blob: bytes) -> None:
        attach(self, seq, blob)
        copies.mkdir()
        for file in path.parent.glob("ledger.sqlite*"):
            if file.is_file():
                shutil.copy(file, copies / file.name)

    ledger._chain._db.execute("PRAGMA cache_size = 10")
    with pytest.MonkeyPatch.context() as patch, ledger.reserve(BIG, PLAN) as taken:  # type: ignore[union-attr]
        patch.setattr(Chain, "attach", attach_and_copy)
        taken.seal(PAYLOAD)
    return list(copies.iterdir()), ledger.account()


def test_bytes_of_a_journal_left_by_a_crash(folder: Path) -> None:
    """At worst the seal that was under way counts; its payload is the right one, or none."""
    files, sealed = half_sealed(use(folder / "ledger.sqlite", runs=2), folder / "ledger.sqlite")
    assert {file.name for file in files} == {"ledger.sqlite", "ledger.sqlite-journal"}
    assert max(file.stat().st_size for file in files) > 2**19, "nothing was written ahead"
    damaged = Damaged(files, folder / "copy")
    assert damaged.right[0].releases[BIG.key].status == "reserved", "the seal was not undone"
    damaged.right.append(sealed)
    (size,) = [file.stat().st_size for file in files if file.name.endswith("journal")]
    for flip in [*((at, 1 << at % 8) for at in range(60)), *anywhere(size, 100)]:
        damaged.flip("journal", [flip])
        with contextlib.suppress(LedgerError, Declined):
            assert Ledger(damaged.path).reserve(BIG, PLAN) == PAYLOAD


def prepare_with_a_write_ahead_log(self: Chain, *_: Any) -> None:
    self._db.execute("PRAGMA journal_mode = WAL")
    self._db.execute("PRAGMA synchronous = FULL")


def test_a_damaged_log_would_say_less(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: SQLite ends its log at the first damaged frame, and says nothing."""
    monkeypatch.setattr(Chain, "_prepare", prepare_with_a_write_ahead_log)
    ledger = use(folder / "ledger.sqlite", runs=2)
    files = [path for path in folder.glob("ledger.sqlite*") if path.is_file()]
    damaged = Damaged(files, folder / "copy")
    (log,) = [path for path in files if path.name.endswith("-wal")]
    with pytest.raises(AssertionError, match="another account"):
        damaged.flip("wal", anywhere(log.stat().st_size, 20))
    ledger.close()


def test_files_cut_off(damaged: Damaged) -> None:
    (good,) = damaged.good.values()
    for size in [0, 1, 99, 100, 511, *range(0, len(good), PAGE), *range(1000, len(good), 3001)]:
        assert damaged.outcome(sqlite=good[:size]) == "refused"
    assert damaged.outcome(sqlite=good[:PAGE] + bytes(len(good) - PAGE)) == "refused"
    assert damaged.outcome(sqlite=bytes(len(good))) == "refused"


def newer(folder: Path, statement: str = f"PRAGMA user_version = {LEDGER.newest + 1}") -> Path:
    path = folder / "ledger.sqlite"
    use(path, runs=1).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(statement)
    return path


def test_a_newer_version_is_refused_and_not_touched(folder: Path) -> None:
    path = newer(folder)
    content, there = path.read_bytes(), sorted(folder.iterdir())
    with pytest.raises(LedgerError, match="newer version of hdpfl-flower") as error:
        Ledger(path)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == content
    assert sorted(folder.iterdir()) == there


def test_the_database_of_somebody_else_is_not_touched(folder: Path) -> None:
    path = newer(folder, "PRAGMA application_id = 7")
    content = path.read_bytes()
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(path)
    assert path.read_bytes() == content


def test_the_late_mutant_changes_a_new_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, prepare = newer(folder), Chain._prepare
    content = path.read_bytes()

    def set_up_first(self: Chain, path: Path, durable: bool) -> None:
        prepare_with_a_write_ahead_log(self)
        prepare(self, path, durable)

    monkeypatch.setattr(Chain, "_prepare", set_up_first)
    with pytest.raises(LedgerError, match="newer version"):
        Ledger(path)
    assert path.read_bytes() != content


def test_the_sites_own_tool_says_so_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hdpfl_tools.site.commands import main
    from tests.client_app.messages import make_site

    profile = make_site(folder / "site")
    path = folder / "site" / "ledger.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {LEDGER.newest + 1}")
    content = path.read_bytes()
    for command in ([], ["--raise-cap"]):
        argv = ["hdpfl-site", "ledger", *command, "--profile", str(profile)]
        monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code not in (0, None)
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.strip().splitlines()) == 1
        assert "newer version" in err
    assert path.read_bytes() == content
