"""A site's series: budget, runs, refusals, and the ledger's integrity."""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from client_app.site.refusals import REASONS, SECONDS_BUSY, refusals_path
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import HDPFLError, LedgerError
from hdpfl_flower.ledger.account import ChargedPlan
from hdpfl_flower.ledger.hash_chain import BUSY, Chain
from hdpfl_flower.monitoring import series as metrics
from hdpfl_flower.monitoring.series import Reading
from hdpfl_flower.releases.rounds import Update
from hdpfl_flower.system.printable import site_log
from hdpfl_flower.wire import numbers_in
from hdpfl_tools.site.open_requests import read_requests
from hdpfl_tools.site.reports.ledger_view import (
    STATUSES,
    LedgerView,
    ledger_paths,
    open_chain,
    view_of,
)
from hdpfl_tools.site.reports.lifetime import budget_status, fit_of_next
from hdpfl_tools.site.reports.signal_to_noise import signal_to_noise

log = site_log()

NEWEST = 20
"""Runs with series of their own."""
EVERY = 300.0
"""Seconds between checks of an unchanged ledger."""

Stamp = tuple[object, ...]
"""Marks of a change: inode, size and file times, and anchor text."""


class SiteSeries:
    """Inputs of a site's exporter.

    The ledger is checked from its first entry to its last whenever its file, its anchor or the
    profile changed, and every five minutes; in between the last findings are shown.

    Guarantees:
        Raises nothing but at the start. A ledger that is not intact is shown as damaged, and
        without its numbers.
    """

    def __init__(self, profile: Path) -> None:
        """Read the profile at ``profile``.

        Raises:
            ProfileError: it is missing or wrong, or names no ledger.
        """
        self._path, self._profile, self._valid = profile, Profile.load(profile), True
        self.ledger = ledger_paths(self._profile).path
        self._found: list[Reading] = []
        self._stamp: Stamp = ()
        self._checked = -math.inf
        self._sizes: dict[str, int] = {}

    @property
    def notify(self) -> str:
        """Receiver of notices, see ``notify`` in the profile; empty: none."""
        return str(self._profile.notify or "")

    def readings(self) -> Iterator[Reading]:
        """Yield the current readings of the site's series."""
        # Before the check: a change during it has another stamp, and the next call checks again.
        stamp = self._stamp_of_files()
        if stamp != self._stamp or time.monotonic() - self._checked > EVERY:
            self._check()
            self._stamp, self._checked = stamp, time.monotonic()
        yield metrics.PROFILE.reads(self._valid)
        yield from self._found
        yield from self._refusals()
        yield from self._files()

    # --- parts -------------------------------------------------------------------------------

    def _check(self) -> None:
        try:
            self._profile, self._valid = Profile.load(self._path), True
        except HDPFLError as error:
            log.error(
                "the profile cannot be read, so the last one that could be read counts: %s", error
            )
            self._valid = False
        try:
            with open_chain(self._profile) as chain:
                readings = list(self._ledger(chain, view_of(chain)))
        except HDPFLError as error:
            if isinstance(error, LedgerError) and BUSY in str(error):
                # A site at work holds the lock: that is no damage.
                return  # the last readings still count
            log.error("%s", error)
            readings = [metrics.INTACT.reads(False)]
        except Exception as error:  # an exporter must not end over its input
            log.error("the ledger cannot be read: %s", type(error).__name__)
            readings = [metrics.INTACT.reads(False)]
        self._found = [*readings, metrics.CHECKED.reads(time.time())]

    def _ledger(self, chain: Chain, view: LedgerView) -> Iterator[Reading]:
        profile, account = self._profile, view.account
        now = budget_status(account, profile.budget)
        yield metrics.INTACT.reads(True)
        yield metrics.ENTRIES.reads(len(view.entries))
        yield metrics.ANCHORED.reads(bool(profile.ledger and profile.ledger.anchor))
        # A Rényi filter keeps the cap, and gives no ε of the runs so far.
        sums = (
            ((metrics.SPENT_EPSILON, metrics.SPENT_DELTA), now.spent),
            ((metrics.LEFT_EPSILON, metrics.LEFT_DELTA), now.left),
        )
        yield metrics.FULL.reads(now.full)
        for (epsilon, delta), amount in (
            ((metrics.LIMIT_EPSILON, metrics.LIMIT_DELTA), now.cap),
            *(() if now.order else sums),
        ):
            yield epsilon.reads(amount[0])
            yield delta.reads(amount[1])
        yield metrics.CHARGED_RUNS.reads(len(account.plans))
        yield metrics.LEFT_LIKE_LAST.reads(fit_of_next(account, profile).runs)
        for run in view.runs[-NEWEST:]:
            yield from self._run(chain, view, run)

    def _run(self, chain: Chain, view: LedgerView, run: str) -> Iterator[Reading]:
        releases = {k: r for k, r in view.account.releases.items() if k[0] == run}
        for kind in sorted({Update.release, *(key[2] for key in releases)}):
            for status in STATUSES:
                yield metrics.RELEASES.reads(view.count(status, run, kind), run, kind, status)
        frozen = view.account.plans.get(run)
        if frozen is None:
            return
        yield metrics.RUN_EPSILON.reads(frozen.epsilon, run)
        yield metrics.RUN_DELTA.reads(frozen.delta, run)
        updates = [release for key, release in releases.items() if key[2] == Update.release]
        with contextlib.suppress(HDPFLError, LookupError, TypeError, ValueError):
            for release in reversed(updates):
                length = chain.blob_size(release.seq)
                if length is not None and (size := numbers_in(length)) > 1:
                    self._sizes[run] = size
                    break
            yield from _plan(frozen, run, len(updates), self._sizes.get(run))

    def _refusals(self) -> Iterator[Reading]:
        paths = self._profile.ledger
        if paths is None:
            return
        try:
            refusals = read_refusals(paths.path)
        except LedgerError as error:
            log.error("%s", error)
            return
        for (answer, reason), count in refusals.counts.items():
            yield metrics.REFUSED.reads(count, answer, reason)
        if refusals.last:
            yield metrics.LAST_REFUSED.reads(refusals.last)

    def _files(self) -> Iterator[Reading]:
        """Yield requests that wait beside the ledger, and free bytes of its disk."""
        if self._profile.ledger is None:
            return
        with contextlib.suppress(LedgerError, OSError):
            path = self._profile.ledger.path
            yield metrics.PENDING_REQUESTS.reads(len(read_requests(path)))
            yield metrics.LEDGER_FREE.reads(shutil.disk_usage(path.parent).free)

    def _stamp_of_files(self) -> Stamp:
        paths = self._profile.ledger
        if paths is None:
            return (_stamp(self._path),)
        anchor = b""
        with contextlib.suppress(OSError):  # opening the ledger writes the anchor anew
            anchor = paths.anchor.read_bytes() if paths.anchor else b""
        return _stamp(self._path), _stamp(paths.path), anchor


def _plan(frozen: ChargedPlan, run: str, taken: int, size: int | None) -> Iterator[Reading]:
    """Yield a plan's paid rounds, its noise and its use.

    A plan that cannot be read raises before anything is yielded.
    """
    plan, terms = frozen.read(), frozen.read_terms()
    yield metrics.PAID_RELEASES.reads(plan.rounds, run)
    yield metrics.LEFT_RELEASES.reads(max(0, plan.rounds - taken), run)
    yield metrics.MULTIPLIER.reads(plan.noise_multiplier, run)
    if size is not None and terms.source.own_noise:
        yield metrics.SIGNAL.reads(signal_to_noise(plan, terms, size).ratio, run)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        there = path.stat()
    except OSError:
        return 0, 0, 0
    return there.st_ino, there.st_size, there.st_mtime_ns


@dataclass(frozen=True)
class Refusals:
    """Counts of refusals so far.

    Attributes:
        counts: (answer, reason) → how often; every pair of ``REASONS``, zeros too.
        last: time of the last one (UTC), seconds since 1970; 0: never.
    """

    counts: dict[tuple[str, str], int]
    last: float


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
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=SECONDS_BUSY)) as db:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'refusals'").fetchone():
            yield from db.execute("SELECT answer, reason, count, last FROM refusals")
