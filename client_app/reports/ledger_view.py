"""A site's ledger as its operator reads it: every entry, verified, and where the budget stands."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from hdpfl_flower.config.profile import Budget, LedgerPaths, Profile
from hdpfl_flower.errors import LedgerError, ProfileError
from hdpfl_flower.ledger.account import Account, as_fraction
from hdpfl_flower.ledger.hash_chain import Chain, Entry

STATUSES = ("reserved", "sealed", "sent", "lost")
"""The statuses of a release, in their order."""

Amount = tuple[float, float]
"""(ε, δ)."""


@dataclass(frozen=True, repr=False)
class LedgerView:
    """All entries of a ledger, verified, and what they add up to."""

    entries: list[Entry]
    account: Account

    def charged_on(self, run_id: str) -> str:
        """Return the day (UTC) on which a run was charged, empty for none."""
        return next(
            (e.at[:10] for e in self.entries if e.kind == "plan" and e.body["run_id"] == run_id), ""
        )

    def count(self, status: str, run_id: str | None = None, kind: str | None = None) -> int:
        """Return how many releases (of a run, of a kind) have the status ``status``."""
        return sum(
            release.status == status and run_id in (None, key[0]) and kind in (None, key[2])
            for key, release in self.account.releases.items()
        )

    @property
    def runs(self) -> list[str]:
        """Every run that was charged or released something, in the order of the ledger."""
        return list(dict.fromkeys([*self.account.plans, *(k[0] for k in self.account.releases)]))

    def digest(self) -> str:
        """Return the digest of the last entry, computed again from all of them; it names them all.

        The anchor has the same one; a copy of the ledger with another one is another ledger.
        """
        # As hash_chain.py links entries: each digest is of the one before and of the entry.
        last = "0" * 64
        for entry in self.entries:
            text = json.dumps(entry.body, sort_keys=True)
            row = json.dumps([last, entry.seq, entry.at, entry.kind, text])
            last = hashlib.sha256(row.encode()).hexdigest()
        return last


@dataclass(frozen=True, repr=False)
class BudgetStatus:
    """Where the budget stands, each as (ε, δ).

    Attributes:
        cap: what counts: the ledger's cap, or the profile's [budget] where that is lower.
        spent: what was charged, rounded up.
        left: what is left, rounded down.
    """

    cap: Amount
    spent: Amount
    left: Amount


def ledger_paths(profile: Profile) -> LedgerPaths:
    """Return where the ledger lies; raises ``ProfileError`` where the profile names none."""
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
    """Return the ledger in the file ``path``, every digest checked; nothing is written beside it.

    It is read from a private copy, so a file that is read-only, or evidence, will do. Of a ledger
    that is being written meanwhile the copy may be torn, and is then refused.

    Raises:
        LedgerError: the ledger is missing, damaged, or of a newer version.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        try:
            shutil.copyfile(path, copy)
            begun = path.with_name(f"{path.name}-journal")  # what SQLite did not finish
            if begun.exists():
                shutil.copyfile(begun, copy.with_name(begun.name))
        except OSError as error:
            raise LedgerError(f"ledger {path} cannot be read: {error.strerror}") from None
        try:
            with contextlib.closing(Chain(copy)) as chain:
                return view_of(chain)
        except LedgerError as error:
            raise LedgerError(str(error).replace(str(copy), str(path))) from None


def view_of(chain: Chain) -> LedgerView:
    """Return everything in an open ledger; raises ``LedgerError`` for entries of no meaning."""
    with chain.transaction() as entries:
        pass
    account = Account()
    for entry in entries:
        try:
            account.apply(entry)
        except (LookupError, TypeError):
            raise LedgerError(
                f"the ledger is damaged: entry {entry.seq} says what none can; restore it"
            ) from None
    return LedgerView(entries, account)


def empty_ledger(budget: Budget) -> LedgerView:
    """Return the ledger that ``budget`` would start."""
    return LedgerView([], Account(cap_epsilon=budget.epsilon, cap_delta=budget.delta))


def budget_status(account: Account, budget: Budget | None) -> BudgetStatus:
    """Return where the budget stands; of the ledger's cap and ``budget``, the lower counts.

    Without a ``budget``, where no profile is at hand, the cap counts.
    """
    (cap_e, left_e), (cap_d, left_d) = _limits(account, budget)
    left = _float_down(left_e), _float_down(left_d)
    return BudgetStatus((cap_e, cap_d), account.spent(), left)


def runs_that_fit(account: Account, profile: Profile, cost: Amount) -> int:
    """Return how many more runs of ``cost`` the ledger would charge, by its own exact sums."""
    counts = [
        _times(left, each)
        for (_, left), each in zip(_limits(account, profile.budget), cost, strict=True)
    ]
    if profile.policy.runs:
        counts.append(max(0, profile.policy.runs - len(account.plans)))
    return int(min(counts))


def notes_on_cap(account: Account, budget: Budget) -> Iterator[str]:
    """Yield a line for each number in which the profile's [budget] and the ledger's cap differ."""
    for name, own, cap in (
        ("epsilon", budget.epsilon, account.cap_epsilon),
        ("delta", budget.delta, account.cap_delta),
    ):
        if own < cap:
            yield f"'budget.{name}' is lower than the ledger's cap: the lower counts"
        elif own > cap:
            yield (
                f"'budget.{name}' is higher than the ledger's cap: the lower counts, until: "
                "hdpfl-site ledger raise-cap"
            )


def _limits(account: Account, budget: Budget | None) -> tuple[tuple[float, Fraction | float], ...]:
    """Return, for ε and for δ, the cap that counts and exactly what is left of it."""
    plans = account.plans.values()
    cap_epsilon, cap_delta = account.cap_epsilon, account.cap_delta
    if budget is not None:
        cap_epsilon, cap_delta = min(cap_epsilon, budget.epsilon), min(cap_delta, budget.delta)
    return (
        (cap_epsilon, _left(cap_epsilon, [plan.epsilon for plan in plans])),
        (cap_delta, _left(cap_delta, [plan.delta for plan in plans])),
    )


def _left(cap: float, costs: list[float]) -> Fraction | float:
    if math.isinf(cap):
        return math.inf
    if math.inf in costs:
        return Fraction(0)
    # Exact, as the ledger adds up: floats could show room for a run that it then refuses.
    return max(Fraction(0), as_fraction(cap) - sum(map(as_fraction, costs)))


def _times(left: Fraction | float, cost: float) -> float:
    """Return how often ``cost`` fits into ``left``."""
    if isinstance(left, float):
        return math.inf
    return 0 if math.isinf(cost) else left // as_fraction(cost)


def _float_down(number: Fraction | float) -> float:
    value = float(number)
    if isinstance(number, float) or as_fraction(value) <= number:
        return value
    # The nearest float may lie above: what is left is rounded down.
    return math.nextafter(value, 0)


def metrics_left(view: LedgerView, run_id: str | None = None) -> int:
    """Return how many metrics may have left the site, not covered by ε."""
    return sum(view.count(status, run_id, "metrics") for status in ("sealed", "sent"))
