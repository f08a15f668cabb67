"""SQLite, the anchor or a lock fails at any one statement: nothing leaves, nothing is forgotten,
and the same open ledger works again afterwards."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.errors import Declined, LedgerError
from hdpfl_flower.ledger import hash_chain as chain_module
from hdpfl_flower.ledger import site_ledger
from hdpfl_flower.ledger.account import ChargedPlan, Request
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.site_ledger import Reservation
from hdpfl_flower.system import files
from tests.crash.checker import read_books

PLAN = ChargedPlan("{}", "{}", epsilon=1.0, delta=1e-6)


class Fault:
    """Lets the ``left``-th call fail, before or after it does its work, and those after it."""

    def __init__(self) -> None:
        self.left, self.after, self.lasting, self.happened = -1, False, False, False

    def around(self, call: Callable[[], Any], error: Exception) -> Any:
        fails = self.left == 0 or (self.lasting and self.happened)
        self.left -= 1
        if fails:
            self.happened = True
            if self.after:
                call()
            raise error
        return call()


class FailingConnection(sqlite3.Connection):
    fault: Fault

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        call = functools.partial(super().execute, sql, *values)
        if sql == "ROLLBACK":
            return call()
        error = sqlite3.OperationalError("database or disk is full")
        return self.fault.around(call, error)  # type: ignore[no-any-return]


def sqlite_fails(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    FailingConnection.fault = fault
    connect = functools.partial(sqlite3.connect, factory=FailingConnection)
    patch.setattr(sqlite3, "connect", connect)


def anchor_fails(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    def write(*args: Any, **kwargs: Any) -> None:
        call = functools.partial(files.replace_file, *args, **kwargs)
        fault.around(call, OSError(errno.ENOSPC, "No space left on device"))

    patch.setattr(chain_module, "replace_file", write)


def lock_fails(fault: Fault, patch: pytest.MonkeyPatch) -> None:
    take = site_ledger.ReleaseLock._open

    def open_it(self: Any) -> Any:
        call = functools.partial(take, self)
        return fault.around(call, OSError(errno.ENOSPC, "No space left on device"))

    patch.setattr(site_ledger.ReleaseLock, "_open", open_it)


PLACES = {"sqlite": sqlite_fails, "anchor": anchor_fails, "lock": lock_fails}


def ask(run: str, server_round: int) -> Request:
    return Request(run, server_round, "update", "d")


def release(ledger: Ledger, request: Request, payload: bytes) -> bytes:
    """Do what ``Site.release`` does."""
    taken = ledger.reserve(request, PLAN)
    if isinstance(taken, bytes):
        return taken
    with taken:
        payload = taken.seal(payload)
    ledger.mark_sent(request.key)
    return payload


def check_fault(ledger: Ledger, path: Path, request: Request, fault: Fault) -> None:
    """Let ``request`` meet the fault; then the same ledger must go on as the file says."""
    with pytest.raises(LedgerError) as told:
        release(ledger, request, b"first")
    assert "\n" not in str(told.value)
    fault.left, fault.lasting = -1, False
    books = read_books(path)
    fresh = Ledger(path, path.with_name("anchor"))
    assert ledger.account() == fresh.account(), "the open ledger says less than the file"
    assert [float(s) for s in books.spent] == list(ledger.account().spent())
    with contextlib.suppress(Declined):
        again = release(ledger, request, b"second")
        assert again == (b"first" if books.sealed[request.key] else b"second")
    lost = ledger.account().releases[request.key].status == "lost"
    assert lost == ("reserved" in books.history[request.key] and not books.sealed[request.key])
    assert release(ledger, ask(request.run_id, 9), b"later") == b"later"
    fresh.close()


def sweep(folder: Path, patch: pytest.MonkeyPatch, place: str, run: str) -> Iterator[int]:
    """Let every call in turn fail, in three ways, until a release does not come to it."""
    for after, lasting in ((False, False), (True, False), (False, True)):
        for turn in itertools.count():
            site = folder / f"{after}-{lasting}-{turn}"
            site.mkdir()
            path, fault = site / "ledger.sqlite", Fault()
            Ledger.create(path, 2.0, 1e-5, site / "anchor").close()
            with patch.context() as patched:
                PLACES[place](fault, patched)
                ledger = Ledger(path, site / "anchor")
                release(ledger, ask("old", 1), b"old")
                fault.left, fault.after, fault.lasting = turn, after, lasting
                if not _comes_to(turn, ledger, path, run, fault):
                    ledger.close()
                    break
                ledger.close()
            yield turn


def _comes_to(turn: int, ledger: Ledger, path: Path, run: str, fault: Fault) -> bool:
    try:
        check_fault(ledger, path, ask(run, 2), fault)
    except pytest.fail.Exception:  # nothing failed: the release has no so many calls
        assert not fault.happened
        return False
    return True


@pytest.mark.parametrize("run", ["old", "new"])
@pytest.mark.parametrize("place", PLACES)
def test_any_one_fault(folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, run: str) -> None:
    met = list(sweep(folder, monkeypatch, place, run))
    assert len(met) >= {"sqlite": 3 * 15, "anchor": 3 * 3, "lock": 3}[place]


@contextlib.contextmanager
def transaction_that_forgets(self: Chain) -> Iterator[Any]:
    """The mutant: entries seen before a failed BEGIN or anchor are not given again."""
    before = self._last, self._digest
    with chain_module.readable_errors():
        self._db.execute("BEGIN IMMEDIATE")
    try:
        with chain_module.readable_errors():
            yield self._read()
        last, digest = self._last, self._digest
        with chain_module.readable_errors():
            self._db.execute("COMMIT")
    except BaseException:
        self._last, self._digest = 0, "0" * 64
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        raise
    if self._anchor is not None and (last, digest) != before:
        chain_module._raise_anchor(self._anchor, last, digest)


def reserve_that_keeps_the_lock(
    self: Ledger, request: Request, plan: ChargedPlan | None
) -> Reservation | bytes:
    """The mutant: a reservation that did not become durable is still locked."""
    with self._current():
        try:
            return self._take(request, plan, 0, 0, (9.0, 9.0), again=False)
        except Declined as decision:
            declined = decision
    raise declined


@pytest.mark.parametrize("place", ["sqlite", "anchor"])
@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Chain, "transaction", transaction_that_forgets),
        (Ledger, "reserve", reserve_that_keeps_the_lock),
    ],
)
def test_the_sweep_finds_what_forgets_and_what_stays_locked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, owner: type, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises((AssertionError, KeyError, LedgerError, BlockingIOError)):
        list(sweep(folder, monkeypatch, place, "old"))


def test_a_busy_ledger_is_not_an_empty_one(folder: Path) -> None:
    """Another process held the file for longer than we wait."""
    path = folder / "ledger.sqlite"
    ledger = Ledger.create(path, 2.0, 1e-5)
    release(ledger, ask("a", 1), b"x")
    ledger._chain._db.execute("PRAGMA busy_timeout = 1")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="another process holds it"):
            ledger.account()
    assert ledger.account().spent() == (1.0, 1e-6)


def test_a_lock_that_is_still_held_for_a_moment(folder: Path) -> None:
    """Another process took the same number, and its entry did not become durable."""
    path = folder / "ledger.sqlite"
    ledger = Ledger.create(path, 2.0, 1e-5)
    held = site_ledger.ReleaseLock(folder / "ledger.sqlite.locks" / "3")
    with pytest.raises(LedgerError, match="try again"):
        ledger.reserve(ask("a", 1), PLAN)
    held.free()
    assert release(ledger, ask("a", 1), b"x") == b"x"


@pytest.mark.parametrize("cost", [(-1.0, 1e-6), (1.0, -1e-6), (float("nan"), 1e-6)])
@pytest.mark.parametrize("cap", [2.0, float("inf")])
def test_an_invalid_cost_is_refused(folder: Path, cap: float, cost: tuple[float, float]) -> None:
    """A negative charge is a refund; NaN compares with nothing."""
    path = folder / "ledger.sqlite"
    ledger = Ledger.create(path, cap, 1e-5)
    with pytest.raises(LedgerError, match="not negative"):
        ledger.reserve(ask("a", 1), ChargedPlan("{}", "{}", *cost))
    with pytest.raises(LedgerError, match="not negative"):
        ledger.raise_cap(*cost)
    with pytest.raises(LedgerError, match="not negative"):
        Ledger.create(folder / "other.sqlite", *cost)
    assert not (folder / "other.sqlite").exists()
    assert ledger.account().spent() == (0.0, 0.0)
    assert ledger.account().cap_epsilon == cap
    assert release(ledger, ask("a", 1), b"x") == b"x"


def check_waits_for_the_disk(ledger: Ledger) -> None:
    """A kill cannot show it, only a loss of power: SQLite is told to wait at every commit."""
    db = ledger._chain._db
    assert db.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_commit_waits_for_the_disk(folder: Path) -> None:
    check_waits_for_the_disk(Ledger.create(folder / "ledger.sqlite", 1.0, 1e-5))
    check_waits_for_the_disk(Ledger(folder / "ledger.sqlite"))
    mutant = Ledger.create(folder / "other.sqlite", 1.0, 1e-5, durable=False)
    with pytest.raises(AssertionError):
        check_waits_for_the_disk(mutant)
