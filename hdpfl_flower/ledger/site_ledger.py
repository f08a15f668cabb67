"""Budget ledger of one population: charges, reservations and releases.

    RESERVED → SEALED → SENT,   or   RESERVED → LOST

A plan is charged once, when it freezes, before any training; each round takes one of its releases.
Across plans the cap is held by a Rényi filter of one order (``renyi.py``), or by the plain
sum, Σε ≤ cap and Σδ ≤ cap (basic composition); both hold for every choice of an adversary. Within a
plan the cost is that of ``accounting.py``.

While a run is open its whole price is reserved. Under a Rényi filter only its reserved releases,
sealed, sent or lost, stay charged when it ends: closed or refused, for good. Under the sum all of
it stays: the end of a run may follow from releases that the server saw, and the (ε, δ) of the
rounds up to there is no bound then.

All state is derived from the entries of a hash chain (``hash_chain.py``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from hdpfl_flower.errors import Declined, LedgerError, Reason
from hdpfl_flower.ledger.account import (
    CLOSED,
    Account,
    ChargedPlan,
    Key,
    Release,
    Request,
    check_cost,
)
from hdpfl_flower.ledger.hash_chain import Chain, Entry

KEPT_ROUNDS = 2
"""Rounds whose payload is kept for resending; hashes stay for ever."""


class SiteLedger:
    """Open ledger of one population, a single file for all processes.

    Guarantees:
        The charges never pass the cap, and fall only at the end of a run, by releases that were
        never reserved. One payload per (run, round, kind). A payload is handed out only when it,
        and the charge of its plan, are on disk.
    """

    def __init__(self, path: Path, anchor: Path | None = None, *, durable: bool = True) -> None:
        """Open and verify the ledger at ``path``.

        Args:
            path: the file.
            anchor: see :class:`Chain`.
            durable: wait for the disk, and keep payloads; a seeded simulation, which can make the
                same bytes again, does neither.

        Raises:
            LedgerError: missing, damaged, older than its anchor, not writable, or with prices that
                do not recount.
        """
        self._chain, self._keeps = Chain(path, anchor, durable=durable), durable
        self.path = path
        self._locks = path.with_name(path.name + ".locks")
        self._account = Account()
        try:
            self.account().check_recount()
        except BaseException:
            self.close()
            raise

    def account(self) -> Account:
        """Return the current account."""
        with self._current():
            return self._account

    def frozen_plan(self, run_id: str) -> ChargedPlan | None:
        """Return the plan charged for ``run_id``, if any; it never changes."""
        # A frozen plan never changes, so that the copy in memory is always valid.
        return self._account.plans.get(run_id) or self.account().plans.get(run_id)

    def close_run(self, run_id: str, *, tuned: bool = False) -> None:
        """Forbid further releases of ``run_id``, permanently; recorded in the chain.

        An interrupted release is lost, and stays charged. A second call has no effect.

        Args:
            run_id: the run.
            tuned: whether its model will be tuned here without noise, which a report names.

        Raises:
            LedgerError: the run is not known, or a release of it is being worked on.
        """
        with self._current():
            if run_id in (self._account.tuned if tuned else self._account.closed):
                return
            releases = self._account.releases
            mine = [release for key, release in releases.items() if key[0] == run_id]
            if not mine:
                raise LedgerError("the ledger knows no such run; nothing was closed")
            for release in mine:
                if release.status == "reserved":
                    try:
                        self._mark_lost(release)
                    except Declined as running:
                        raise LedgerError(
                            "a release of the run is in progress; wait for the round's end"
                        ) from running
            self._append(CLOSED, {"run_id": run_id, **({"tuned": True} if tuned else {})})

    def reserve(
        self,
        request: Request,
        plan: ChargedPlan | None,
        *,
        max_runs: int = 0,
        max_releases: int = 0,
        max_exact: float = math.inf,
        cap: tuple[float, float] = (math.inf, math.inf),
        again: bool = False,
    ) -> Reservation | bytes:
        """Reserve a release before any work for it.

        Args:
            request: the release, and the hash of the server's request.
            plan: the plan that covers it; charged now if its run is new. None for a release that
                no plan covers (a disclosed metric).
            max_runs: runs that may be charged, or send clipped updates without noise; 0: any
                number.
            max_releases: releases of this kind that the run may take, of any round, lost
                ones counted; 0: any number.
            max_exact: answers without noise that may ever be reserved, of all runs.
            cap: the profile's own (ε, δ) cap, if lower than the ledger's.
            again: whether a release may be repeated (a seeded simulation: same bytes).

        Returns:
            The sealed payload if the same request was answered before; else a reservation,
            to be used as a context manager around the work.

        Raises:
            Declined: another request for the same release, a lost or running one, another plan
                for the same run, a run that is closed, no release left, or no budget.
            LedgerError: the ledger cannot be written.
        """
        taken: Reservation | bytes | Declined = b""
        try:
            with self._current():
                try:
                    self._account.check_open(request)
                    self._account.check_left(request, max_releases or math.inf)
                    self._account.check_declared(request)
                    taken = self._take(request, plan, max_runs, max_exact, cap, again)
                except Declined as decision:  # raised after the block, so that entries made stay
                    taken = decision
        except BaseException:
            if isinstance(taken, Reservation):
                taken.free()  # no process will work on it
            raise
        if isinstance(taken, Declined):
            raise taken
        return taken

    def broken_off(self) -> Key | None:
        """Return the last release if its process died and it never left."""
        with self._current():
            releases = self._account.releases
            key = max(releases, key=lambda key: releases[key].seq, default=None)
            if key is None or releases[key].status != "reserved":
                return None
            try:
                # A free lock shows that no process works on the release.
                self._lock(releases[key].seq).free()
            except BlockingIOError:
                return None
            return key

    def mark_sent(self, key: Key) -> None:
        """Record the hand-over of a payload to Flower; not in simulations."""
        if not self._keeps:
            return
        with self._current():
            release = self._account.releases[key]
            if release.status == "sealed":
                self._append("sent", {"release": release.seq})

    def seal(self, key: Key, seq: int, payload: bytes) -> None:
        """Store the payload of reservation ``seq``; drop older rounds' payloads.

        Raises:
            LedgerError: the reservation is no longer this attempt's, or the disk failed.
        """
        with self._current():
            release = self._account.releases[key]
            # Another attempt may have marked this one lost: two payloads of one release would be
            # two releases.
            if release.seq != seq or release.status != "reserved":
                raise LedgerError("the reservation was given up meanwhile; its result is discarded")
            digest = hashlib.sha256(payload).hexdigest()
            # Digest and payload in one transaction: both are on disk, or neither.
            self._append("sealed", {"release": seq, "payload": digest})
            if not self._keeps:
                return
            self._chain.attach(seq, payload)
            run_id, server_round, kind = key
            last_dropped = server_round - KEPT_ROUNDS
            releases = self._account.releases.items()
            mine = [(k[1], r.seq) for k, r in releases if (k[0], k[2]) == (run_id, kind)]
            self._chain.drop_blobs([number for past, number in mine if past <= last_dropped])

    def lose(self, key: Key, seq: int) -> None:
        """Give up reservation ``seq``: the release is lost, no payload left."""
        with self._current():
            release = self._account.releases[key]
            if release.seq == seq and release.status == "reserved":
                self._append("lost", {"release": seq})

    def close(self) -> None:
        """Close the file."""
        self._chain.close()

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Lock the file with an updated account; reset it on failure."""
        try:
            with self._chain.transaction() as entries:
                for entry in entries:
                    self._account.apply(entry)
                yield
        except BaseException:
            self._account = Account()  # the chain also starts over, and yields every entry again
            raise

    def _take(
        self,
        request: Request,
        plan: ChargedPlan | None,
        max_runs: int,
        max_exact: float,
        cap: tuple[float, float],
        again: bool,
    ) -> Reservation | bytes:
        earlier = self._account.releases.get(request.key)
        if earlier is not None:
            # The same release for another request would use one charge twice.
            if earlier.request != request.digest:
                raise Declined(Reason.REPLAY, "another request for a release that is already taken")
            if earlier.status in ("sealed", "sent") and not (again and not self._keeps):
                return self._payload(earlier)
            # Not sealed: no payload left. Only the reservation of an ended process becomes lost.
            if earlier.status == "reserved":
                self._mark_lost(earlier)
            if not again:
                raise Declined(
                    Reason.REPLAY, "the release is lost; the site takes no part in this round"
                )
        # Under this transaction's lock: two processes cannot both take the last one.
        self._account.check_exact(request, max_exact)
        if plan is not None or request.epsilon is not None:
            self._account.check_runs(request, max_runs or math.inf)
        if plan is not None:
            self._pay(request, plan, cap)
        return self._reserved(request)

    def _reserved(self, request: Request) -> Reservation:
        seq = self._append("reserved", request.entry()).seq
        try:
            # The lock is taken before the commit, so that no process sees the entry without its
            # lock.
            return Reservation(self, request.key, seq, self._lock(seq))
        except BlockingIOError:  # briefly held for an entry that did not become durable
            raise LedgerError("ledger: another process holds it; try again") from None

    def _append(self, kind: str, body: dict[str, object]) -> Entry:
        entry = self._chain.append(kind, dict(body))
        self._account.apply(entry)
        return entry

    def _pay(self, request: Request, plan: ChargedPlan, cap: tuple[float, float]) -> None:
        """Charge the plan of a new run; check that it pays for the release."""
        account, frozen = self._account, self._account.plans.get(request.run_id)
        # Two first requests at once; work must follow the charged plan.
        if frozen is not None and frozen != plan:
            raise Declined(Reason.TERMS, "another plan was frozen meanwhile")
        if account.order:
            # Priced here, from the text that is stored: no caller and no server names an order.
            plan = frozen or plan.at(account.order)
            account.check_priced(request, plan)
        if frozen is None:
            check_cost(plan.epsilon, plan.delta)
            account.check_fits(plan, cap)
            # Charge and reservation are entries of one transaction, before the work.
            self._append("plan", plan.entry(request.run_id))

    def _payload(self, release: Release) -> bytes:
        payload = self._chain.blob(release.seq)
        if payload is None:
            raise Declined(Reason.REPLAY, "the payload of an older round is no longer kept")
        # A damaged payload must not leave: it would be a second payload of the same release.
        if hashlib.sha256(payload).hexdigest() != release.payload_digest:
            raise LedgerError("the ledger is damaged: a payload does not match its seal")
        return payload

    def _mark_lost(self, release: Release) -> None:
        """Mark a reservation of a dead process lost; decline if alive."""
        try:
            lock = self._lock(release.seq)
        except BlockingIOError:
            raise Declined(Reason.REPLAY, "the release is in progress") from None
        try:
            self._append("lost", {"release": release.seq})
        finally:
            lock.free()

    def _lock(self, seq: int) -> ReleaseLock:
        return ReleaseLock(self._locks / str(seq))


class Reservation:
    """Reserved release; leaving the block unsealed loses it."""

    def __init__(self, ledger: SiteLedger, key: Key, seq: int, lock: ReleaseLock) -> None:
        """Made by :meth:`SiteLedger.reserve` only."""
        self._ledger, self._key, self._seq, self._lock = ledger, key, seq, lock
        self._sealed = False

    def __enter__(self) -> Reservation:
        return self

    def seal(self, payload: bytes) -> bytes:
        """Store ``payload`` durably and return it; only now may it leave."""
        # Raises if the seal is not durable; then the payload is not returned.
        self._ledger.seal(self._key, self._seq, payload)
        self._sealed = True
        return payload

    def __exit__(self, *_: object) -> None:
        try:
            if not self._sealed:
                self._ledger.lose(self._key, self._seq)
        finally:
            self.free()

    def free(self) -> None:
        """Free the release's lock; its status stays."""
        self._lock.free()


class ReleaseLock:
    """OS lock on a small file, freed whenever its process ends."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            BlockingIOError: it is held.
            LedgerError: the file cannot be made.
        """
        self._path = path
        try:
            self._fd = self._open()
        except OSError as error:
            raise LedgerError(f"ledger: {path} cannot be made: {error.strerror}") from None
        try:
            # Without waiting: a held lock means that the release is being worked on.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def free(self) -> None:
        """Release the lock and remove its file."""
        with contextlib.suppress(OSError):
            # Unlinked while still held: later another process may own the name.
            self._path.unlink(missing_ok=True)
        os.close(self._fd)

    def _open(self) -> int:
        flags = os.O_CREAT | os.O_RDWR
        try:
            return os.open(self._path, flags, 0o600)
        except FileNotFoundError:  # the first lock of this ledger
            self._path.parent.mkdir(exist_ok=True, mode=0o700)
            return os.open(self._path, flags, 0o600)
