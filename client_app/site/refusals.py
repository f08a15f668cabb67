"""Counts of refusals by reason, only for the site's operator.

A refusal is no release, so the ledger's chain has no entry of it: a server that asks a million
times must not make the chain a million entries long. The file has one row a reason; it stores no
name, no text and no number of a request.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from hdpfl_flower import wire
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import Declined, HDPFLError, Reason
from hdpfl_flower.system.printable import site_log

log = site_log()

ANSWERS = {wire.DECLINED: "declined", wire.FAILED: "failed"}
"""The constant codes, in words."""
REASONS: dict[str, tuple[str, ...]] = {
    "declined": tuple(reason.value for reason in Reason),
    "failed": ("accounting", "data", "ledger", "model", "terms", "wire", "other"),
}
"""Reason; an unlisted error counts as other."""

SECONDS_BUSY = 2.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS refusals (answer TEXT NOT NULL, reason TEXT NOT NULL,
    count INTEGER NOT NULL, last TEXT NOT NULL, PRIMARY KEY (answer, reason)) STRICT
"""
_ADD = """
INSERT INTO refusals VALUES (?, ?, 1, ?)
ON CONFLICT DO UPDATE SET count = count + 1, last = excluded.last
"""


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
    with contextlib.closing(sqlite3.connect(path, timeout=SECONDS_BUSY)) as db, db:
        db.execute(_SCHEMA)
        db.execute(_ADD, (answer, word, now))


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
