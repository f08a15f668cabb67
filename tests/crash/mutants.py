"""Bugs to put back, one a function; the checker must find each of them.

A mutant gets the site's ``_release`` and the worker's ``note``; it patches what it likes, and
returns another ``_release`` or None.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hdpfl_flower.ledger import account as accounts
from hdpfl_flower.ledger import site_ledger as module
from hdpfl_flower.ledger.account import Account, ChargedPlan, Request
from hdpfl_flower.ledger.hash_chain import Chain
from hdpfl_flower.ledger.site_ledger import Reservation, SiteLedger

Release = Callable[..., bytes]
Note = Callable[[Path, dict[str, Any], bytes], None]


def sealed_after_it_was_sent(release: Release, note: Note) -> Release:
    def leaky(site: Any, instructions: Any, work: Any) -> bytes:
        def work_and_send() -> bytes:
            payload: bytes = work()
            folder = site.ledger._locks.parent
            ask = {"run": instructions.terms.run_id, "round": instructions.server_round}
            note(folder / "seen", ask, payload)
            return payload

        return release(site, instructions, work_and_send)

    return leaky


def charged_after_the_work(release: Release, note: Note) -> None:
    """The plan is charged with the seal, not with the reservation."""
    take, seal = SiteLedger.reserve, SiteLedger.seal
    waiting: dict[str, ChargedPlan] = {}

    def reserve(
        self: SiteLedger, request: Request, plan: ChargedPlan | None, **more: Any
    ) -> Reservation | bytes:
        if plan is not None:
            waiting[request.run_id] = plan
        return take(self, request, None, **more)

    def charge(self: SiteLedger, key: Any, seq: int, payload: bytes) -> None:
        seal(self, key, seq, payload)
        with self._current():
            if key[0] not in self._account.plans:
                self._account.check_fits(waiting[key[0]], (1e9, 1e9))
                self._append("plan", waiting[key[0]].entry(key[0]))

    SiteLedger.reserve, SiteLedger.seal = reserve, charge  # type: ignore[method-assign]


def a_lost_release_is_refunded(release: Release, note: Note) -> None:
    """A run with a lost release does not count."""
    check = Account.check_fits

    def refund(self: Account, *args: Any) -> None:
        every = self.plans
        lost = {key[0] for key, r in self.releases.items() if r.status == "lost"}
        self.plans = {run: plan for run, plan in every.items() if run not in lost}
        try:
            check(self, *args)
        finally:
            self.plans = every

    Account.check_fits = refund  # type: ignore[method-assign]


def a_lost_release_is_worked_on_again(release: Release, note: Note) -> None:
    take = SiteLedger.reserve

    def reserve(self: SiteLedger, *args: Any, **more: Any) -> Reservation | bytes:
        return take(self, *args, **{**more, "again": True})

    SiteLedger.reserve = reserve  # type: ignore[method-assign]


def charges_are_not_summed(release: Release, note: Note) -> None:
    accounts.sum_within = lambda values, limit: values[-1] <= limit  # type: ignore[assignment]


def charges_are_summed_as_floats(release: Release, note: Note) -> None:
    """Ten runs of 0.1 would not fit into 1."""
    accounts.sum_within = lambda values, limit: sum(values) <= limit  # type: ignore[assignment]


def handed_out_before_the_commit(release: Release, note: Note) -> None:
    """The transactions after the reservation stay open until the process ends."""
    inner = sqlite3.connect.keywords["factory"]  # type: ignore[attr-defined]

    class Lazy(inner):  # type: ignore[valid-type,misc]
        ends = 0

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            self.ends += sql == "COMMIT"
            late = sql == "COMMIT" and self.ends > 2  # opened, reserved
            if late or (sql.startswith("BEGIN") and self.in_transaction):
                sql = "SELECT 1"
            return super().execute(sql, *values)  # type: ignore[no-any-return]

    sqlite3.connect.keywords["factory"] = Lazy  # type: ignore[attr-defined]


def a_replay_gets_fresh_bytes(release: Release, note: Note) -> None:
    SiteLedger._payload = lambda self, known: os.urandom(100)  # type: ignore[method-assign,assignment]


def a_replay_is_worked_on_anew(release: Release, note: Note) -> None:
    """Sealed releases are forgotten when the ledger is opened."""
    apply = Account.apply

    def forget(self: Account, entry: Any) -> None:
        apply(self, entry)
        if entry.kind == "sent":
            self.releases = {k: r for k, r in self.releases.items() if r.status != "sent"}

    Account.apply = forget  # type: ignore[method-assign]


def another_request_gets_an_answer(release: Release, note: Note) -> None:
    """What is asked is not compared."""
    digest = "always the same"
    SiteLedger.reserve = _with_digest(SiteLedger.reserve, digest)  # type: ignore[method-assign]


def _with_digest(take: Any, digest: str) -> Any:
    def reserve(self: SiteLedger, request: Request, *args: Any, **more: Any) -> Reservation | bytes:
        same = Request(request.run_id, request.server_round, request.kind, digest)
        result: Reservation | bytes = take(self, same, *args, **more)
        return result

    return reserve


def no_lock_and_late_results_are_kept(release: Release, note: Note) -> None:
    """A release being worked on is given up by others, and sealed all the same."""

    class NoLock:
        def __init__(self, path: Path) -> None:
            pass

        def free(self) -> None:
            pass

    def seal(self: SiteLedger, key: Any, seq: int, payload: bytes) -> None:
        with self._current():
            digest = hashlib.sha256(payload).hexdigest()
            self._append("sealed", {"release": seq, "payload": digest})
            self._chain.attach(seq, payload)

    module.ReleaseLock, SiteLedger.seal = NoLock, seal  # type: ignore[attr-defined,method-assign,assignment]


def nothing_is_held_alone(release: Release, note: Note) -> None:
    """Every statement is a transaction of its own."""
    inner = sqlite3.connect.keywords["factory"]  # type: ignore[attr-defined]

    class Alone(inner):  # type: ignore[valid-type,misc]
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith(("BEGIN", "COMMIT")):
                sql = "SELECT 1"
            return super().execute(sql, *values)  # type: ignore[no-any-return]

    sqlite3.connect.keywords["factory"] = Alone  # type: ignore[attr-defined]


def the_anchor_is_not_read(release: Release, note: Note) -> None:
    Chain._check_anchor = lambda self: None  # type: ignore[method-assign]
