"""Creation of a hash chain's file, atomic and durable."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from hdpfl_flower import formats
from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.hash_chain import (
    APPLICATION_ID,
    FIRST,
    PATIENCE,
    Chain,
    readable_errors,
    write_anchor,
)
from hdpfl_flower.ledger.locks import alone_in
from hdpfl_flower.system.files import sync

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {formats.LEDGER.newest};
CREATE TABLE entries (seq INTEGER PRIMARY KEY, at TEXT NOT NULL, kind TEXT NOT NULL,
                      body TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
CREATE TABLE blobs (seq INTEGER PRIMARY KEY, blob BLOB NOT NULL) STRICT;
CREATE TABLE head (seq INTEGER NOT NULL, digest TEXT NOT NULL) STRICT;
"""


def create_chain(path: Path, anchor: Path | None = None, *, durable: bool = True) -> Chain:
    """Create a new, empty file, mode 0600.

    Raises:
        LedgerError: the file exists, or its anchor (then a file was deleted, and a new one
            would forget the spent budget), or the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Only one of two processes creates it.
        with alone_in(path.parent, PATIENCE):
            for there in (path, anchor):
                if there is not None and there.exists():
                    raise LedgerError(f"{there} exists already; a ledger is created only once")
            if anchor is not None:
                write_anchor(anchor, 0, FIRST)
            _write_empty(path, durable)
    except OSError as error:
        raise LedgerError(f"ledger {path} cannot be created: {error.strerror}") from None
    return Chain(path, anchor, durable=durable)


def _write_empty(path: Path, durable: bool) -> None:
    """Write a file without entries, mode 0600, atomically.

    A crash leaves all of it, or no file of that name.
    """
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.unlink(missing_ok=True)  # of a crash before
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with readable_errors(), contextlib.closing(sqlite3.connect(unfinished)) as db:
        # No journal beside it: the rest of a crashed write is never read.
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        db.executescript(f"BEGIN; {_SCHEMA}")
        db.execute("INSERT INTO head VALUES (0, ?)", (FIRST,))
        db.commit()
    try:
        os.link(unfinished, path)  # a file that has appeared meanwhile stays, and is an error
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        unfinished.rename(path)
    unfinished.unlink(missing_ok=True)
    if durable:
        sync(path.parent)
