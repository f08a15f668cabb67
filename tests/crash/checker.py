"""What must hold of a site at any time, seen from outside: its ledger's rows, what the recording
server saw, what was worked on.

The rows are folded here once more, in fractions, and not by the code under test.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from hdpfl_flower.errors import LedgerError
from hdpfl_flower.ledger.ledger import Ledger

Key = tuple[str, int, str]


@dataclass
class Books:
    """The rows of a ledger, folded."""

    cap: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))
    spent: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))
    runs: list[str] = field(default_factory=list)
    history: dict[Key, list[str]] = field(default_factory=lambda: defaultdict(list))
    sealed: dict[Key, list[str]] = field(default_factory=lambda: defaultdict(list))


def read_books(path: Path) -> Books:
    """Fold the rows of the ledger at ``path``."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT seq, kind, body FROM entries ORDER BY seq").fetchall()
    books, keys = Books(), {}
    for seq, kind, text in rows:
        body = json.loads(text)
        cost = Fraction(repr(body.get("epsilon", 0))), Fraction(repr(body.get("delta", 0)))
        if kind == "cap":
            assert all(new >= old for new, old in zip(cost, books.cap, strict=True)), "cap fell"
            books.cap = cost
        elif kind == "plan":
            books.runs.append(body["run_id"])
            books.spent = books.spent[0] + cost[0], books.spent[1] + cost[1]
        else:
            if kind == "reserved":
                keys[seq] = body["run_id"], body["round"], body["kind"]
                assert keys[seq][0] in books.runs, "worked on before it was charged"
            key = keys[body.get("release", seq)]
            books.history[key].append(kind)
            if kind == "sealed":
                books.sealed[key].append(body["payload"])
    return books


def read_notes(path: Path) -> dict[Key, list[str]]:
    """Return the digests of the payloads noted in ``path``, by release."""
    notes: dict[Key, list[str]] = defaultdict(list)
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # being written
            entry: dict[str, Any] = json.loads(line)
            payload = bytes.fromhex(entry["payload"])
            notes[tuple(entry["key"])].append(hashlib.sha256(payload).hexdigest())
    return notes


class Checker:
    """Looks at a site's folder again and again; raises ``AssertionError`` at the first wrong."""

    def __init__(self, folder: Path, *, anchored: bool = True) -> None:
        self._folder, self._before = folder, Books()
        self._anchor = folder / "anchor" if anchored else None

    def look(self) -> Books:
        """Check all that must hold, now and against the last look."""
        path = self._folder / "ledger.sqlite"
        try:
            ledger = Ledger(path, self._anchor)  # verifies the chain and the anchor
        except LedgerError as reason:
            raise AssertionError(f"the ledger does not open: {reason}") from None
        shown = ledger.account().spent()
        ledger.close()
        books = read_books(path)
        for spent, cap, said in zip(books.spent, books.cap, shown, strict=True):
            assert spent <= cap, "more is spent than the cap"
            assert spent <= Fraction(repr(said)), "the account shows less than was charged"
        assert books.spent >= self._before.spent, "spent fell"
        assert books.cap >= self._before.cap, "the cap fell"
        assert len(set(books.runs)) == len(books.runs), "a run was charged twice"
        self._check_histories(books)
        self._check_payloads(books)
        self._before = books
        return books

    def _check_histories(self, books: Books) -> None:
        whole = ["reserved", "sealed", "sent"]
        for key, history in books.history.items():
            assert history in (*(whole[: n + 1] for n in range(3)), ["reserved", "lost"]), history
            old = self._before.history.get(key, [])
            assert history[: len(old)] == old, "the past changed"
        assert set(self._before.history) <= set(books.history), "a release was forgotten"

    def _check_payloads(self, books: Books) -> None:
        for key, digests in read_notes(self._folder / "worked").items():
            assert len(digests) == 1, "worked on twice, with fresh noise"
            assert key in books.history, "worked on and not reserved"
        for key, digests in read_notes(self._folder / "seen").items():
            assert len(set(digests)) == 1, "the server saw two payloads of one release"
            assert books.sealed[key] == digests[:1], "the server saw what was not sealed"
