"""In-memory ledger of a simulated site, saved when closed.

A simulation of thousands would spend more on their files than on their training. No real budget
depends on these ledgers, and only one process uses them; their rules are those of every ledger.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.hash_chain import Chain, Entry
from hdpfl_flower.ledger.ledger import Ledger
from hdpfl_flower.ledger.new_chain import create_chain
from hdpfl_flower.ledger.site_ledger import ReleaseLock


class MemoryChain(Chain):
    """In-memory :class:`Chain`; :meth:`close` appends new entries to its file."""

    def __init__(self, path: Path) -> None:
        """Load the file at ``path``, if any; raises ``LedgerError``."""
        self._path, self._seen = path, 0
        self._texts: list[tuple[str, str, str]] = []  # a third of the entries' size
        if path.is_file():
            with contextlib.closing(Chain(path, durable=False)) as file, file.transaction() as all_:
                self._texts = [(e.at, e.kind, json.dumps(e.body)) for e in all_]
        self._written = len(self._texts)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[list[Entry]]:
        """Open an in-memory transaction, rolled back if it fails."""
        before = len(self._texts)
        try:
            new = [self._entry(seq) for seq in range(self._seen + 1, before + 1)]
            self._seen = before
            yield new
        except BaseException:
            # The rollback; all entries are read again, since the account was dropped with it.
            del self._texts[before:]
            self._seen = 0
            raise

    def append(self, kind: str, body: dict[str, Any], moment: str = "") -> Entry:
        """Add an entry, dated now or ``at``, inside a transaction."""
        moment = moment or datetime.now(UTC).isoformat(timespec="milliseconds")
        self._texts.append((moment, kind, json.dumps(body)))
        self._seen = len(self._texts)
        return Entry(self._seen, moment, kind, body)

    def blob(self, seq: int) -> bytes | None:
        """Return None: a seeded simulation makes its payloads again."""
        del seq
        return None

    def close(self) -> None:
        """Write new entries to the file, creating it if missing.

        Raises:
            LedgerError: the disk refuses.
        """
        if self._written == len(self._texts):
            return
        make = Chain if self._path.is_file() else create_chain
        with contextlib.closing(make(self._path, durable=False)) as file, file.transaction():
            for moment, kind, text in self._texts[self._written :]:
                file.append(kind, json.loads(text), moment)
        self._written = len(self._texts)

    def _entry(self, seq: int) -> Entry:
        moment, kind, text = self._texts[seq - 1]
        return Entry(seq, moment, kind, json.loads(text))


class SimulatedLedger(Ledger):
    """In-memory :class:`Ledger` of one process, without payloads, until :meth:`close`."""

    def __init__(self, path: Path, epsilon: float, delta: float) -> None:
        """Open the ledger of ``path``, or create it with this cap.

        Raises:
            LedgerError: the file is damaged, or the cap is not a valid (ε, δ).
        """
        self._chain, self._keeps = MemoryChain(path), False
        self._account = Account()
        if not self.account().cap_epsilon:
            self.raise_cap(epsilon, delta)

    def _lock(self, seq: int) -> ReleaseLock:
        del seq
        return _NoLock()


class _NoLock(ReleaseLock):
    """Lock of a release that no other process can use."""

    def __init__(self) -> None:
        pass

    def free(self) -> None:
        """Make no change."""
