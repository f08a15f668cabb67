"""Counts of refusals by reason, for the site's operator alone.

A refusal is no release, so the ledger's chain has no entry of it: a server that asks a million
times must not make the chain a million entries long. The file has one row a reason; it stores no
name, no text and no number of a request.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import Declined, HDPFLError, LedgerError, Reason
from hdpfl_flower.system.printable import site_log

log = site_log()

ANSWERS = {wire.DECLINED: "declined", wire.FAILED: "failed"}
"""The constant codes, in words."""
REASONS: dict[str, tuple[str, ...]] = {
    "declined": tuple(reason.value for reason in Reason),
    "failed": ("accounting", "data", "ledger", "model", "terms", "wire", "other"),
}
"""Reason; an unlisted error counts as other."""

_SECONDS_BUSY = 2.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS refusals (answer TEXT NOT NULL, reason TEXT NOT NULL,
    count INTEGER NOT NULL, last TEXT NOT NULL, PRIMARY KEY (answer, reason)) STRICT
"""
_ADD = """
INSERT INTO refusals VALUES (?, ?, 1, ?)
ON CONFLICT DO UPDATE SET count = count + 1, last = excluded.last
"""


@dataclass(frozen=True)
class Refusals:
    """Counts of refusals so far.

    Attributes:
        counts: (answer, reason) → how often; every pair of ``REASONS``, zeros too.
        last: time of the last one (UTC), seconds since 1970; 0: never.
    """

    counts: dict[tuple[str, str], int]
    last: float


def refusals_path(ledger: Path) -> Path:
    """Return the file beside the ledger at ``ledger``."""
    return ledger.with_name(ledger.name + ".refusals")


def note_refusal(profile: Profile | None, code: int, word: str) -> None:
    """Count a refusal of a deployed site with a ledger.

    Guarantees:
        Raises nothing: a count is not worth a reply. The file stores a word of ``REASONS``.
    """
    try:
        if profile is None or profile.ledger is None or profile.simulated:
            return
        if code not in ANSWERS:  # a run that waits asks again and again, and a decision is known
            return
        count_refusal(refusals_path(profile.ledger.path), ANSWERS[code], word)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the guard's own call: nothing may pass it
        log.warning("the refusal could not be counted: %s", type(error).__name__)


def count_refusal(path: Path, answer: str, word: str) -> None:
    """Increment a count; a missing file is made, mode 0600.

    Raises:
        sqlite3.Error, OSError: the file cannot be written.
    """
    # Made here, since SQLite would make it with the mode that the umask leaves.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with contextlib.closing(sqlite3.connect(path, timeout=_SECONDS_BUSY)) as db, db:
        db.execute(_SCHEMA)
        db.execute(_ADD, (answer, word, now))


def read_refusals(ledger: Path) -> Refusals:
    """Return the counts beside the ledger, 0 without a file.

    Raises:
        LedgerError: the file cannot be read.
    """
    counts = {(answer, word): 0 for answer, words in REASONS.items() for word in words}
    path, last = refusals_path(ledger), 0.0
    if not path.exists():
        return Refusals(counts, last)
    try:
        for answer, word, count, time in _rows(path):
            if (answer, word) in counts:
                counts[answer, word] = int(count)
                last = max(last, datetime.fromisoformat(time).timestamp())
    except (sqlite3.Error, ValueError, TypeError):
        raise LedgerError(f"the refusals in {path} cannot be read; remove the file") from None
    return Refusals(counts, last)


def _rows(path: Path) -> Iterator[tuple[str, str, int, str]]:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_SECONDS_BUSY)) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'refusals'").fetchone():
            yield from db.execute("SELECT answer, reason, count, last FROM refusals")


def word_of(reason: BaseException) -> str:
    """Return the counted reason: that of declining, or the error's kind.

    >>> from hdpfl_flower.errors import DataError
    >>> word_of(Declined(Reason.BUDGET, "…")), word_of(DataError("…"))
    ('budget', 'data')
    """
    if isinstance(reason, Declined):
        return reason.reason.value
    ours = isinstance(reason, HDPFLError)
    word = type(reason).__name__.removesuffix("Error").lower() if ours else "other"
    return word if word in REASONS["failed"] else "other"
