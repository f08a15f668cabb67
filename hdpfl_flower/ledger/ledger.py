"""Budget ledger of one protected population: its charges, reservations and releases.

    RESERVED → SEALED → SENT,   or   RESERVED → LOST

A plan's (ε, δ) is charged once, when it freezes, before any training; each round takes one of its
releases. Charges are never refunded. Across plans the filter is the plain sum, Σε ≤ cap and
Σδ ≤ cap, which holds whatever an adversary chooses (basic composition); within a plan the cost is
that of ``accounting.py``.

Everything is derived from the entries of a hash chain (``hash_chain.py``); there is no other state.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

from hdpfl_flower.errors import Declined, LedgerError, Reason
from hdpfl_flower.ledger.account import (
    APPROVED,
    CLOSED,
    REFUSED,
    Account,
    Approval,
    ChargedPlan,
    Key,
    Release,
    Request,
    check_cost,
    sum_within,
)
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.locks import ReleaseLock

KEPT_ROUNDS = 2
"""Rounds whose payload is kept, to send the same bytes again; hashes are kept for ever."""


class Ledger:
    """The ledger of one population, open. All its processes share the one file.

    Guarantees:
        What is spent never falls and never passes the cap. One payload per (run, round, kind).
        A payload is handed out only after it, and the charge of its plan, are on disk.
    """

    def __init__(self, path: Path, anchor: Path | None = None, *, durable: bool = True) -> None:
        """Open and verify the ledger at ``path``.

        Args:
            path: the file.
            anchor: see :class:`Chain`.
            durable: wait for the disk, and keep payloads; a seeded simulation, which can make the
                same bytes again, does neither.

        Raises:
            LedgerError: missing, damaged, older than its anchor, or not writable.
        """
        self._chain, self._keeps = Chain(path, anchor, durable=durable), durable
        self._locks = path.with_name(path.name + ".locks")
        self._account = Account()
        try:
            with self._current():
                pass
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        path: Path,
        epsilon: float,
        delta: float,
        anchor: Path | None = None,
        *,
        durable: bool = True,
    ) -> Ledger:
        """Make a new ledger with its lifetime cap; raises ``LedgerError`` where one exists."""
        check_cost(epsilon, delta)
        chain = Chain.create(path, anchor, durable=durable)
        with chain.transaction():
            chain.append("cap", {"epsilon": epsilon, "delta": delta})
        chain.close()
        return cls(path, anchor, durable=durable)

    def account(self) -> Account:
        """Return what the ledger says now."""
        with self._current():
            return self._account

    def frozen_plan(self, run_id: str) -> ChargedPlan | None:
        """Return the plan that was charged for ``run_id``, if any; it never changes."""
        # A frozen plan never changes, so that what is in memory needs no look at the file.
        return self._account.plans.get(run_id) or self.account().plans.get(run_id)

    def raise_cap(self, epsilon: float, delta: float) -> None:
        """Raise the lifetime cap, by a local decision; recorded in the chain, never undone."""
        check_cost(epsilon, delta)
        with self._current():
            if epsilon < self._account.cap_epsilon or delta < self._account.cap_delta:
                raise LedgerError(
                    "the cap can only be raised; lower [budget] in the profile instead"
                )
            self._append("cap", {"epsilon": epsilon, "delta": delta})

    def close_run(self, run_id: str) -> None:
        """Let nothing more of ``run_id`` be released, for good; recorded in the chain.

        A release that broke off is lost. A second call does nothing.

        Raises:
            LedgerError: no such run, or a release of it is being worked on.
        """
        with self._current():
            if run_id in self._account.closed:
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
                            "a release of the run is being worked on; wait for the round's end"
                        ) from running
            self._chain.raise_format()
            self._append(CLOSED, {"run_id": run_id})

    def approve(self, approval: Approval) -> None:
        """Record that a run may release here what it asks for; a second call does nothing.

        Raises:
            LedgerError: the run was refused, which stays.
        """
        with self._current():
            if approval.run_id in self._account.refused:
                raise LedgerError(
                    "the run was refused, and a refusal stays; ask the coordinator for a new run"
                )
            if approval.request not in self._account.approved.get(approval.run_id, ()):
                self._chain.raise_format()
                self._append(APPROVED, approval.entry())

    def refuse(self, run_id: str, by: str) -> None:
        """Let ``run_id`` release nothing from now on, for good; a second call does nothing."""
        with self._current():
            if run_id not in self._account.refused:
                self._chain.raise_format()
                self._append(REFUSED, {"run_id": run_id, "by": by})

    def reserve(
        self,
        request: Request,
        plan: ChargedPlan | None,
        *,
        max_runs: int = 0,
        max_releases: int = 0,
        cap: tuple[float, float] = (math.inf, math.inf),
        again: bool = False,
    ) -> Reservation | bytes:
        """Take a release before any work is done for it.

        Args:
            request: the release, and the hash of what the server asks.
            plan: the plan that covers it; charged now if its run is new. None for a release that
                no plan covers (a disclosed metric).
            max_runs: runs that may be charged; 0: any number.
            max_releases: releases of this kind that the run may take, of whichever rounds, lost
                ones counted; 0: any number.
            cap: the profile's own (ε, δ) cap, where lower than the ledger's.
            again: whether a release may be worked on again (a seeded simulation: same bytes).

        Returns:
            The sealed payload where the same request was answered before; else a reservation,
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
                    taken = self._take(request, plan, max_runs, cap, again)
                except Declined as decision:  # raised after the block, so that entries made stay
                    taken = decision
        except BaseException:
            if isinstance(taken, Reservation):
                taken.free()  # nobody will work on it
            raise
        if isinstance(taken, Declined):
            raise taken
        return taken

    def broken_off(self) -> Key | None:
        """Return the release that was taken last, where its process is gone and nothing left it."""
        with self._current():
            releases = self._account.releases
            key = max(releases, key=lambda each: releases[each].seq, default=None)
            if key is None or releases[key].status != "reserved":
                return None
            try:
                # A lock that can be taken shows that no process works on the release.
                self._lock(releases[key].seq).free()
            except BlockingIOError:
                return None
            return key

    def mark_sent(self, key: Key) -> None:
        """Note that the payload was handed to Flower: best effort, so a simulation does without."""
        if not self._keeps:
            return
        with self._current():
            release = self._account.releases[key]
            if release.status == "sealed":
                self._append("sent", {"release": release.seq})

    def seal(self, key: Key, seq: int, payload: bytes) -> None:
        """Store the payload of the reservation ``seq``; drops payloads of older rounds.

        Raises:
            LedgerError: the reservation is no longer this attempt's, or the disk failed.
        """
        with self._current():
            release = self._account.releases[key]
            # Another attempt may have declared this one lost: two payloads of one release would be
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
            self._chain.drop_blobs([
                other.seq for (run, past, what), other in self._account.releases.items()
                if (run, what) == (run_id, kind) and past <= server_round - KEPT_ROUNDS
            ])  # fmt: skip

    def lose(self, key: Key, seq: int) -> None:
        """Give up the reservation ``seq``: the release is gone, nothing left the site."""
        with self._current():
            release = self._account.releases[key]
            if release.seq == seq and release.status == "reserved":
                self._append("lost", {"release": seq})

    def close(self) -> None:
        """Close the file."""
        self._chain.close()

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Hold the file alone, with the account up to date; undo the account if it fails."""
        try:
            with self._chain.transaction() as entries:
                for entry in entries:
                    self._account.apply(entry)
                yield
        except BaseException:
            self._account = Account()  # the chain starts over, too, and yields every entry again
            raise

    def _take(
        self,
        request: Request,
        plan: ChargedPlan | None,
        max_runs: int,
        cap: tuple[float, float],
        again: bool,
    ) -> Reservation | bytes:
        known = self._account.releases.get(request.key)
        if known is not None:
            # The same release for another request would spend one charge twice.
            if known.request != request.digest:
                raise Declined(Reason.REPLAY, "another request for a release that was taken")
            if known.status in ("sealed", "sent") and not (again and not self._keeps):
                return self._payload(known)
            # Not sealed: nothing has left. Only a reservation whose process is gone becomes lost.
            if known.status == "reserved":
                self._mark_lost(known)
            if not again:
                raise Declined(Reason.REPLAY, "the release is lost; the site sits out this round")
        if plan is not None:
            # Charge and reservation are entries of one transaction, before the work.
            frozen = self._account.plans.get(request.run_id)
            if frozen is None:
                self._charge(request.run_id, plan, max_runs, cap)
            elif frozen != plan:  # two first requests at once; the work must follow what is charged
                raise Declined(Reason.TERMS, "another plan was frozen meanwhile")
        seq = self._append("reserved", request.entry()).seq
        try:
            # The lock is taken before the commit, so that no process sees the entry without its
            # lock.
            return Reservation(self, request.key, seq, self._lock(seq))
        except BlockingIOError:  # of one whose entry did not become durable, for a moment yet
            raise LedgerError("ledger: another process holds it; try again") from None

    def _append(self, kind: str, body: dict[str, object]) -> Entry:
        entry = self._chain.append(kind, dict(body))
        self._account.apply(entry)
        return entry

    def _charge(
        self, run_id: str, plan: ChargedPlan, max_runs: int, cap: tuple[float, float]
    ) -> None:
        check_cost(plan.epsilon, plan.delta)
        account = self._account
        if max_runs and len(account.plans) >= max_runs:
            raise Declined(Reason.POLICY, "'policy.runs' runs were charged already")
        # Basic composition, Σε and Σδ, the new plan included; the lower of both caps counts.
        charges = [*account.plans.values(), plan]
        for total, limit in (
            ([p.epsilon for p in charges], min(cap[0], account.cap_epsilon)),
            ([p.delta for p in charges], min(cap[1], account.cap_delta)),
        ):
            if not sum_within(total, limit):
                raise Declined(Reason.BUDGET, "the run does not fit into what is left")
        self._append("plan", {"run_id": run_id, "plan": plan.plan, "terms": plan.terms,
                              "epsilon": plan.epsilon, "delta": plan.delta})  # fmt: skip

    def _payload(self, release: Release) -> bytes:
        payload = self._chain.blob(release.seq)
        if payload is None:
            raise Declined(Reason.REPLAY, "the payload of an older round is no longer kept")
        # A damaged payload must not leave: it would be a second one for the same release.
        if hashlib.sha256(payload).hexdigest() != release.payload_digest:
            raise LedgerError("the ledger is damaged: a payload does not match its seal")
        return payload

    def _mark_lost(self, release: Release) -> None:
        """Turn a reservation whose process is gone into a lost one; decline if it still runs."""
        try:
            lock = self._lock(release.seq)
        except BlockingIOError:
            raise Declined(Reason.REPLAY, "the release is being worked on") from None
        try:
            self._append("lost", {"release": release.seq})
        finally:
            lock.free()

    def _lock(self, seq: int) -> ReleaseLock:
        return ReleaseLock(self._locks / str(seq))


class Reservation:
    """A release taken and not yet sealed; leaving the block without sealing loses it."""

    def __init__(self, ledger: Ledger, key: Key, seq: int, lock: ReleaseLock) -> None:
        """Made by :meth:`Ledger.reserve` only."""
        self._ledger, self._key, self._seq, self._lock = ledger, key, seq, lock
        self._sealed = False

    def __enter__(self) -> Reservation:
        return self

    def seal(self, payload: bytes) -> bytes:
        """Store ``payload`` durably and return it: only now may it leave."""
        # Raises where the seal is not durable; the payload is not returned then.
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
        """Let go of the release's lock; its status stays."""
        self._lock.free()
