"""Append-only hash chain of entries in SQLite, durable against power loss.

Storage of the ledger, which does not interpret its entries. An entry may have a temporary blob.
An entry that is altered or dropped breaks the chain. The anchor detects an old copy of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hdpfl_flower import formats
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.locks import alone_in
from hdpfl_flower.system.files import replace_file

APPLICATION_ID = 0x48445046
FIRST = "0" * 64
PATIENCE = 30.0
"""Maximum seconds to wait for another process, possibly suspended."""


BUSY = "another process holds it; try again"
_SQLITE_SAYS = {
    "disk is full": "the disk is full; free some space",
    "disk I/O error": "the disk cannot be read or written; check it",
    "database is locked": BUSY,
    "readonly database": "it is read-only; check its permissions",
    "unable to open": "it cannot be opened; check its folder and permissions",
}


@dataclass(frozen=True, repr=False)
class Entry:
    """One fact: number (from 1), UTC time (for people), kind and body."""

    seq: int
    at: str
    kind: str
    body: dict[str, Any]


class Chain:
    """Open file of the chain.

    Guarantees:
        An entry that :meth:`append` wrote in a completed transaction is on disk (``durable``),
        has no gap after it, and cannot change unnoticed. Entries are read only after their
        digests were checked.
    """

    def __init__(self, path: Path, anchor: Path | None = None, *, durable: bool = True) -> None:
        """Open the chain at ``path`` and check all of it.

        Args:
            path: the SQLite file.
            anchor: small file, best on other storage, that names the last known entry.
            durable: wait for the disk at every commit; only a simulation does not.

        Raises:
            LedgerError: missing, unreadable, damaged, of a newer version, or older than its anchor.
        """
        self._anchor, self._last, self._digest = anchor, 0, FIRST
        if not path.is_file():
            raise LedgerError(f"ledger {path} is not there; create it: hdpfl-site ledger --init")
        with readable_errors():
            # mode=rw, not rwc: opening must never create an empty ledger, which has no charge.
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=PATIENCE,
                isolation_level=None,
                check_same_thread=False,
            )
        try:
            with readable_errors():
                self._prepare(path, durable)
            self._check_anchor()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[list[Entry]]:
        """Lock the file; yield entries added since the last read.

        All writes of :meth:`append` and :meth:`attach` inside become durable at the end, or none
        of them. After any failure, the next transaction yields every entry again.

        Raises:
            LedgerError: busy for 30 s, disk full, damaged, or the anchor cannot be written (then
                the entries are still durable).
        """
        before = self._last
        try:
            with readable_errors():
                # The write lock before the read: no process adds an entry between read and write.
                self._db.execute("BEGIN IMMEDIATE")
                yield self._read()
            last, digest = self._last, self._digest
            with readable_errors():
                self._db.execute("COMMIT")
            # After the commit: an anchor ahead of its file would mark a good ledger as an old copy.
            if self._anchor is not None and last > before:
                _raise_anchor(self._anchor, last, digest)
        except BaseException:
            self._last, self._digest = 0, FIRST
            # A failed commit or anchor may leave the entries durable: all are read again.
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # the first error is the one to raise
                    self._db.execute("ROLLBACK")
            raise

    def append(self, kind: str, body: dict[str, Any], moment: str = "") -> Entry:
        """Add an entry, dated now or ``at``, inside a transaction."""
        moment = moment or datetime.now(UTC).isoformat(timespec="milliseconds")
        text = json.dumps(body, sort_keys=True)
        seq, digest = self._last + 1, _digest(self._digest, self._last + 1, moment, kind, text)
        self._db.execute(
            "INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (seq, moment, kind, text, digest)
        )
        # The head names the newest entry, so that a lost last page is detected.
        self._db.execute("UPDATE head SET seq = ?, digest = ?", (seq, digest))
        self._last, self._digest = seq, digest
        return Entry(seq, moment, kind, body)

    def attach(self, seq: int, blob: bytes) -> None:
        """Keep ``blob`` with entry ``seq``; only inside a transaction."""
        self._db.execute("INSERT INTO blobs VALUES (?, ?)", (seq, blob))

    def blob(self, seq: int) -> bytes | None:
        """Return the blob of entry ``seq``, or None if dropped."""
        with readable_errors():
            row = self._db.execute("SELECT blob FROM blobs WHERE seq = ?", (seq,)).fetchone()
        return None if row is None else bytes(row[0])

    def blob_size(self, seq: int) -> int | None:
        """Return the blob size of entry ``seq``, or None if dropped."""
        with readable_errors():
            query = "SELECT length(blob) FROM blobs WHERE seq = ?"
            row = self._db.execute(query, (seq,)).fetchone()
        return None if row is None else int(row[0])

    def drop_blobs(self, seqs: list[int]) -> None:
        """Delete the blobs of ``seqs``, inside a transaction; entries stay."""
        self._db.executemany("DELETE FROM blobs WHERE seq = ?", [(seq,) for seq in seqs])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _prepare(self, path: Path, durable: bool) -> None:
        """Refuse an unreadable format before any write; then set up."""
        if self._db.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
            raise LedgerError(f"{path} is not a ledger of hdpfl")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        formats.LEDGER.check(version)
        _set_durability(self._db, durable)

    def _read(self) -> list[Entry]:
        """Return entries after the last one seen, with verified digests."""
        if self._last == 0:  # at first, and again after any failure
            self._check_anchor()
        entries = []
        rows = self._db.execute("SELECT * FROM entries WHERE seq > ? ORDER BY seq", (self._last,))
        for seq, moment, kind, text, digest in rows:
            # Each digest covers the one before it: an altered, dropped or moved entry breaks the
            # chain.
            right = _digest(self._digest, self._last + 1, moment, kind, text)
            if seq != self._last + 1 or digest != right:
                raise LedgerError(f"the ledger is damaged at entry {self._last + 1}; restore it")
            self._last, self._digest = seq, digest
            entries.append(Entry(seq, moment, kind, json.loads(text)))
        head = self._db.execute("SELECT seq, digest FROM head").fetchone()
        if head != (self._last, self._digest):  # a damaged page can hide the newest entries
            raise LedgerError(f"the ledger is damaged after entry {self._last}; restore it")
        return entries

    def _check_anchor(self) -> None:
        """Refuse a file that lacks the anchored entry."""
        if self._anchor is None:
            return
        seq, digest = _read_anchor(self._anchor)
        with readable_errors():
            row = self._db.execute("SELECT digest FROM entries WHERE seq = ?", (seq,)).fetchone()
        # The anchored entry must exist with its digest; later entries are normal.
        if ((FIRST,) if seq == 0 else row) != (digest,):
            raise LedgerError(
                "the ledger is older than its anchor: a copy was put back; restore the newest"
            )


def _set_durability(db: sqlite3.Connection, durable: bool) -> None:
    """Set waiting for the disk at every commit; off in simulations.

    A rollback journal, not a write-ahead log: from a damaged log SQLite silently drops the newest
    transactions, and with them spent budget. With a journal, all that :meth:`Chain.transaction`
    finished is in the file itself.
    """
    db.execute(f"PRAGMA journal_mode = {'DELETE' if durable else 'MEMORY'}")
    db.execute(f"PRAGMA synchronous = {'EXTRA' if durable else 'OFF'}")


def _digest(before: str, seq: int, moment: str, kind: str, text: str) -> str:
    return hashlib.sha256(json.dumps([before, seq, moment, kind, text]).encode()).hexdigest()


def _read_anchor(path: Path) -> tuple[int, str]:
    """Return the number and digest of the last known entry."""
    with contextlib.suppress(OSError, ValueError):
        match json.loads(path.read_text()):
            case [int(seq), str(digest)] if 0 <= seq < 2**63:
                return seq, digest
    raise LedgerError(f"the ledger's anchor {path} is missing or damaged; restore it")


def _raise_anchor(path: Path, seq: int, digest: str) -> None:
    """Raise the anchor to entry ``seq``, never lowering it."""
    # Read and write under one lock: the anchor only moves up, in any order of processes.
    with alone_in(path.parent, PATIENCE):
        if _read_anchor(path)[0] < seq:
            write_anchor(path, seq, digest)


def write_anchor(path: Path, seq: int, digest: str) -> None:
    """Replace the anchor; an interruption leaves the valid old one."""
    try:
        replace_file(path, json.dumps([seq, digest]).encode(), durable=True)
    except OSError as error:
        raise LedgerError(
            f"the ledger's anchor {path} cannot be written: {error.strerror}"
        ) from None


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn SQLite's errors into one line with a remedy."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError, TypeError, ValueError) as error:
        for said, remedy in _SQLITE_SAYS.items():
            if said in str(error):
                raise LedgerError(f"ledger: {remedy}") from None
        raise LedgerError("the ledger is damaged; restore it from a backup") from None
