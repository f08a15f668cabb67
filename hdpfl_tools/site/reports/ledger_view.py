"""A site's ledger for its operator: verified entries, budget."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hdpfl_flower.config.profile import Budget, LedgerPaths, Profile
from hdpfl_flower.errors import LedgerError, ProfileError
from hdpfl_flower.ledger.account import Account
from hdpfl_flower.ledger.hash_chain import Chain, Entry

STATUSES = ("reserved", "sealed", "sent", "lost")
"""The statuses of a release, in their order."""


@dataclass(frozen=True, repr=False)
class LedgerView:
    """Verified entries of a ledger, and their sums."""

    entries: list[Entry]
    account: Account

    def charged_days(self) -> dict[str, str]:
        """Return the day (UTC) on which each run was charged."""
        return {e.body["run_id"]: e.at[:10] for e in self.entries if e.kind == "plan"}

    def count(self, status: str, run_id: str | None = None, kind: str | None = None) -> int:
        """Return the number of releases (of a run, of a kind) by status."""
        return sum(
            release.status == status and run_id in (None, key[0]) and kind in (None, key[2])
            for key, release in self.account.releases.items()
        )

    def released(self, kind: str, run_id: str | None = None) -> int:
        """Return the number of releases of a kind (of a run) that may have left."""
        return sum(self.count(status, run_id, kind) for status in ("sealed", "sent"))

    @property
    def runs(self) -> list[str]:
        """Every charged or releasing run, in the ledger's order."""
        return list(dict.fromkeys([*self.account.plans, *(k[0] for k in self.account.releases)]))

    def digest(self) -> str:
        """Return the last entry's recomputed digest, which covers all entries.

        The anchor has the same one; a copy of the ledger with another one is another ledger.
        """
        # As hash_chain.py links entries: each digest is of the one before and of the entry.
        last = "0" * 64
        for entry in self.entries:
            text = json.dumps(entry.body, sort_keys=True)
            row = json.dumps([last, entry.seq, entry.at, entry.kind, text])
            last = hashlib.sha256(row.encode()).hexdigest()
        return last


def ledger_paths(profile: Profile) -> LedgerPaths:
    """Return the ledger's path; raises ``ProfileError`` if unnamed."""
    if profile.ledger is None:
        raise ProfileError("profile: [ledger] is missing; add it with its 'path'")
    return profile.ledger


@contextlib.contextmanager
def open_chain(profile: Profile) -> Iterator[Chain]:
    """Open the profile's ledger, its anchor checked.

    Raises:
        ProfileError: the profile names no ledger.
        LedgerError: the ledger is missing, damaged, or older than its anchor.
    """
    paths = ledger_paths(profile)
    with contextlib.closing(Chain(paths.path, paths.anchor)) as chain:
        yield chain


def read_ledger(profile: Profile) -> LedgerView:
    """Return the profile's ledger, every digest checked; raises as :func:`open_chain`."""
    with open_chain(profile) as chain:
        return view_of(chain)


def read_copy(path: Path) -> LedgerView:
    """Return the verified ledger in the file ``path``; read-only.

    It is read from a private copy, so a file that is read-only, or evidence, will do. Of a ledger
    that is being written meanwhile the copy may be torn, and is then refused.

    Raises:
        LedgerError: the ledger is missing, damaged, or of a newer version.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            shutil.copyfile(path, copy)
            journal = path.with_name(f"{path.name}-journal")  # of an unfinished transaction
            if journal.exists():
                shutil.copyfile(journal, copy.with_name(journal.name))
        except OSError as error:
            raise LedgerError(f"ledger {path} cannot be read: {error.strerror}") from None
        try:
            with contextlib.closing(Chain(copy)) as chain:
                return view_of(chain)
        except LedgerError as error:
            raise LedgerError(str(error).replace(str(copy), str(path))) from None


def view_of(chain: Chain) -> LedgerView:
    """Return the content of an open ledger; raises ``LedgerError``."""
    with chain.transaction() as entries:
        pass
    account = Account()
    for entry in entries:
        try:
            account.apply(entry)
        except (LookupError, TypeError):
            raise LedgerError(
                f"the ledger is damaged: entry {entry.seq} holds what no entry can hold; "
                "restore the ledger"
            ) from None
    return LedgerView(entries, account)


def notes_on_cap(account: Account, budget: Budget) -> Iterator[str]:
    """Yield differences between the profile's [budget] and the ledger's cap."""
    for name, wanted, cap in (
        ("epsilon", budget.epsilon, account.cap_epsilon),
        ("delta", budget.delta, account.cap_delta),
    ):
        if wanted < cap:
            yield (
                f"'budget.{name}' is lower than the ledger's cap: the lower value counts for new "
                "runs; it holds for what has left only if the charges fit under it"
            )
        elif wanted > cap:
            yield (
                f"'budget.{name}' is higher than the ledger's cap: the lower value counts until "
                "you run: hdpfl-site ledger --raise-cap"
            )


def exact_answers(given: int, most: int | None) -> str:
    """Return how many answers without noise were given, in words.

    Args:
        given: so far, lost ones counted.
        most: ``budget.exact-answers``; None: no bound is at hand, or none holds.

    >>> exact_answers(3, 20)
    "exact accuracies of models on this site's records: 3 of 20 answered; ε does not cover them"
    """
    of = "" if most is None else f" of {most}"
    return (
        f"exact accuracies of models on this site's records: {given}{of} answered; ε does not "
        "cover them"
    )


def most_exact(site: Profile | None) -> int | None:
    """Return the allowed number of answers without noise; None: unbounded."""
    return None if site is None or site.simulated else site.budget.exact_answers
