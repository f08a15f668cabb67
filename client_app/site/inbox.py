"""Runs that wait for the operator's decision, in a file beside the ledger.

The file has one row a run, the server's last request, and decides nothing: approvals and refusals
are entries of the ledger. A row has a number, which no other request gets: a run has a new one when
its terms or its app change. A lost file costs one more request of the server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.policy import lasting_terms

MOST_RUNS = 20
"""Runs that the file holds. Another one finds room where one of them was not asked for lately."""
STALE = timedelta(hours=1)
"""Age of a last request at which a run makes room; coordinators ask once a minute."""
SECONDS_BUSY = 5.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (number INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, terms TEXT NOT NULL, app TEXT NOT NULL,
    first TEXT NOT NULL, last TEXT NOT NULL) STRICT
"""
_ASK_AGAIN = "UPDATE requests SET terms = ?, last = ? WHERE run_id = ? AND digest = ?"
_FORGET = "DELETE FROM requests WHERE run_id = ?"
_MAKE_ROOM = """
DELETE FROM requests WHERE number IN (SELECT number FROM requests WHERE last < ?1 ORDER BY last
    LIMIT max(0, (SELECT count(*) FROM requests) - ?2 + 1))
"""
_COUNT = "SELECT count(*) FROM requests"
_FILE = "INSERT INTO requests (run_id, digest, terms, app, first, last) VALUES (?, ?, ?, ?, ?5, ?5)"


def request_digest(terms: RunTerms, app: str) -> str:
    """Return the SHA-256 of an approval: terms, run name, app.

    The terms are those that no message may change (``lasting_terms``).

    >>> terms = RunTerms().updated(run_id="a")
    >>> one = request_digest(terms, "app")
    >>> one == request_digest(terms.updated(clip_norm=2), "app")
    True
    >>> one == request_digest(terms.updated(epsilon_cap=0.5), "app")
    False
    """
    bound = lasting_terms(terms)
    return hashlib.sha256(json.dumps([bound, app], sort_keys=True).encode()).hexdigest()


def covering_digests(terms: RunTerms, app: str) -> set[str]:
    """Return the digests that approve ``terms``, with and without a cap.

    A cap makes a run cost less, and some strategies set one once all sites have joined. An
    approval of a cap is one of that cap alone: without it the run would cost more.
    """
    return {request_digest(accepted, app) for accepted in (terms, terms.updated(epsilon_cap=0.0))}


def inbox_path(ledger: Path) -> Path:
    """Return the file beside the ledger at ``ledger``."""
    return ledger.with_name(ledger.name + ".requests")


def file_request(ledger: Path, terms: RunTerms, app: str) -> bool:
    """Let a run wait for a decision, with its newest terms.

    The file is made, mode 0600, where it is not there.

    Returns:
        Whether it waits: no run that is still asked for is displaced by another one.

    Raises:
        sqlite3.Error, OSError: the file cannot be written.
    """
    text, path, digest = terms.to_json(), inbox_path(ledger), request_digest(terms, app)
    # Made here, since SQLite would make it with the mode that the umask leaves.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    now = datetime.now(UTC)
    asked, stale = (instant.isoformat(timespec="microseconds") for instant in (now, now - STALE))
    with contextlib.closing(sqlite3.connect(path, timeout=SECONDS_BUSY)) as db, db:
        db.execute(_SCHEMA)
        db.execute("BEGIN IMMEDIATE")
        if db.execute(_ASK_AGAIN, (text, asked, terms.run_id, digest)).rowcount:
            return True
        db.execute(_FORGET, (terms.run_id,))
        db.execute(_MAKE_ROOM, (stale, MOST_RUNS))
        if db.execute(_COUNT).fetchone()[0] >= MOST_RUNS:
            return False
        db.execute(_FILE, (terms.run_id, digest, text, app, asked))
        return True
