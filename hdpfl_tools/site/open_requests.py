"""Runs that wait at a site, as its operator reads and removes them."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from client_app.site.inbox import SECONDS_BUSY, inbox_path, request_digest
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import LedgerError, TermsError

_READ = "SELECT number, terms, app, first, last FROM requests ORDER BY number"


@dataclass(frozen=True)
class RunRequest:
    """A run that waits for a decision.

    Attributes:
        number: the site's own, of this run under these terms and this app.
        terms: the public terms.
        app: SHA-256 of the app that would work under them.
        first: when it was first asked for (UTC, ISO).
        last: when it was asked for last.
    """

    number: int
    terms: RunTerms
    app: str
    first: str
    last: str

    @property
    def run_id(self) -> str:
        """The run, as the server names it."""
        return self.terms.run_id

    @property
    def digest(self) -> str:
        """SHA-256 of the approval that the shown terms ask for."""
        return request_digest(self.terms, self.app)


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
            RunRequest(number, RunTerms.from_json(terms), app, first, last)
            for number, terms, app, first, last in _rows(path)
        ]
    except (sqlite3.Error, ValueError, TypeError, TermsError):
        raise LedgerError(
            f"the requests in {path} cannot be read; remove the file: servers ask again, and the "
            "requests get new numbers"
        ) from None


def remove_request(ledger: Path, request: RunRequest) -> None:
    """Remove a decided run; later requests stay.

    Raises:
        LedgerError: the file cannot be written.
    """
    path = inbox_path(ledger)
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=SECONDS_BUSY)) as db, db:
            db.execute("DELETE FROM requests WHERE number = ?", (request.number,))
    except sqlite3.Error:
        raise LedgerError(f"the requests in {path} cannot be written; remove the file") from None


def _rows(path: Path) -> Iterator[tuple[int, str, str, str, str]]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=SECONDS_BUSY)) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone():
            yield from db.execute(_READ)
