"""Runs that wait for the operator's decision, in a file beside the ledger.

The file has one row a run, what the server asked for last, and decides nothing: approvals and
refusals are entries of the ledger. A lost file costs one more request of the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import LedgerError, TermsError
from hdpfl_flower.privacy.policy import FREE_TERMS

MOST_RUNS = 20
"""Runs that the file holds; the one that was asked for longest ago makes room."""
MOST_BYTES = 256_000
"""Bytes of a run's terms, at most; longer ones are declined."""
_SECONDS_BUSY = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (run_id TEXT PRIMARY KEY, digest TEXT NOT NULL,
    terms TEXT NOT NULL, app TEXT NOT NULL, first TEXT NOT NULL, last TEXT NOT NULL) STRICT
"""
_FILE = """
INSERT INTO requests VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT DO UPDATE SET terms = excluded.terms, app = excluded.app, last = excluded.last,
    first = iif(digest = excluded.digest, first, excluded.first), digest = excluded.digest
"""
_READ = "SELECT run_id, digest, terms, app, first, last FROM requests ORDER BY first, run_id"
_MAKE_ROOM = """
DELETE FROM requests WHERE run_id NOT IN
    (SELECT run_id FROM requests ORDER BY last DESC LIMIT ?)
"""


@dataclass(frozen=True)
class RunRequest:
    """A run that waits for a decision.

    Attributes:
        run_id: the run, as the server names it.
        digest: SHA-256 of what an approval is bound to.
        terms: the public terms.
        app: SHA-256 of the app that would work under them.
        first: when it was first asked for (UTC, ISO).
        last: when it was asked for last.
    """

    run_id: str
    digest: str
    terms: RunTerms
    app: str
    first: str
    last: str


def request_digest(terms: RunTerms, app: str) -> str:
    """Return the SHA-256 of what an approval is bound to: the terms, the run's name, the app.

    The terms are those that no message may change (``FREE_TERMS``).

    >>> terms = RunTerms().updated(run_id="a")
    >>> one = request_digest(terms, "app")
    >>> one == request_digest(terms.updated(clip_norm=2), "app")
    True
    >>> one == request_digest(terms.updated(epsilon_cap=0.5), "app")
    False
    """
    bound = {key: value for key, value in terms.as_config().items() if key not in FREE_TERMS}
    return hashlib.sha256(json.dumps([bound, app], sort_keys=True).encode()).hexdigest()


def covering_digests(terms: RunTerms, app: str) -> set[str]:
    """Return the digests whose approval is one of ``terms``: their own, and without a cap.

    A cap makes a run cost less, and some strategies set one once all sites have joined. An
    approval of a cap is one of that cap alone: without it the run would cost more.
    """
    return {request_digest(each, app) for each in (terms, terms.updated(epsilon_cap=0.0))}


def inbox_path(ledger: Path) -> Path:
    """Return the file beside the ledger at ``ledger``."""
    return ledger.with_name(ledger.name + ".requests")


def file_request(ledger: Path, terms: RunTerms, app: str) -> None:
    """Let a run wait for a decision; a run that waits already has its newest terms.

    The file is made, mode 0600, where it is not there.

    Raises:
        TermsError: the terms are longer than :data:`MOST_BYTES`.
        sqlite3.Error, OSError: the file cannot be written.
    """
    text, path = terms.to_json(), inbox_path(ledger)
    if len(text.encode()) > MOST_BYTES:
        raise TermsError(
            f"the terms are longer than {MOST_BYTES} bytes; ask the coordinator to shorten them"
        )
    # Made here, since SQLite would make it with the mode that the umask leaves.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    with contextlib.closing(sqlite3.connect(path, timeout=_SECONDS_BUSY)) as db, db:
        db.execute(_SCHEMA)
        db.execute(_FILE, (terms.run_id, request_digest(terms, app), text, app, now))
        db.execute(_MAKE_ROOM, (MOST_RUNS,))


def read_requests(ledger: Path) -> list[RunRequest]:
    """Return the runs that wait, the oldest request first.

    Raises:
        LedgerError: the file cannot be read.
    """
    path = inbox_path(ledger)
    if not path.exists():
        return []
    try:
        return [
            RunRequest(run, digest, RunTerms.from_json(terms), app, first, last)
            for run, digest, terms, app, first, last in _rows(path)
        ]
    except (sqlite3.Error, ValueError, TypeError, TermsError):
        raise LedgerError(
            f"the requests in {path} cannot be read; remove the file, servers ask again"
        ) from None


def remove_request(ledger: Path, request: RunRequest) -> None:
    """Take out a run that was decided; what the server asked for since then stays.

    Raises:
        LedgerError: the file cannot be written.
    """
    path = inbox_path(ledger)
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_SECONDS_BUSY)) as db, db:
            db.execute(
                "DELETE FROM requests WHERE run_id = ? AND digest = ?",
                (request.run_id, request.digest),
            )
    except sqlite3.Error:
        raise LedgerError(f"the requests in {path} cannot be written; remove the file") from None


def _rows(path: Path) -> Iterator[tuple[str, str, str, str, str, str]]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_SECONDS_BUSY)) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone():
            yield from db.execute(_READ)
