"""Coordinator's exporter: readings from the journals of the newest runs.

One process for all runs, past and present: a port inside a ServerApp loses a run's last rounds, and
the second run of a machine never gets one. A journal is followed from where it was read to; a line
that is still being written waits for its end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hdpfl_flower.monitoring import series as metrics
from hdpfl_flower.monitoring.journal import parse_events, read_journal
from hdpfl_flower.monitoring.series import Reading
from hdpfl_tools.coordinator.monitoring.run_series import RunTally

log = logging.getLogger("hdpfl.server")

NEWEST = 20
"""Runs that are shown."""
_LARGEST_CERTIFICATE = 65536


@dataclass
class _Followed:
    """Journal with its reading position; a replaced file is read anew."""

    path: Path
    tally: RunTally
    inode: int = 0
    offset: int = 0

    def catch_up(self) -> None:
        with self.path.open("rb") as file:
            there = os.fstat(file.fileno())
            # Another file under the name, or a shorter one: totals begin anew instead of counting
            # twice.
            if there.st_ino != self.inode or there.st_size < self.offset:
                self.tally, self.inode, self.offset = RunTally(self.tally.run), there.st_ino, 0
            file.seek(self.offset)
            whole = file.read()
        # Up to the last line end; with none, rfind is −1 and nothing is read.
        whole = whole[: whole.rfind(b"\n") + 1]
        self.offset += len(whole)
        for event in parse_events(whole.decode(errors="replace").split("\n")):
            self.tally.apply(event)


class RunFollower:
    """Runs in a folder, with the parsed parts of their journals."""

    def __init__(self, folder: Path, newest: int = NEWEST) -> None:
        """Show the ``newest`` runs in ``folder``, by the last write."""
        self._folder, self._newest = folder, newest
        self._followed: dict[Path, _Followed] = {}

    def readings(self) -> Iterator[Reading]:
        """Yield all runs' readings; unreadable runs are logged and skipped."""
        paths = self._journals()
        self._followed = {
            path: self._followed.get(path) or _Followed(path, RunTally(path.parent.name))
            for path in paths
        }
        for path, followed in self._followed.items():
            try:
                followed.catch_up()
                readings = list(followed.tally.readings())
            except Exception as error:  # one run's journal must not hide the others
                log.warning("journal %s cannot be read: %s", path, type(error).__name__)
                continue
            yield from readings

    def _journals(self) -> list[Path]:
        """Return the newest journals' paths, the newest first."""
        written = []
        for path in self._folder.glob("*/journal.jsonl"):
            with contextlib.suppress(OSError):  # removed meanwhile
                written.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(written, reverse=True)[: self._newest]]


def readings_of_files(paths: Iterable[Path]) -> Iterator[Reading]:
    """Yield sizes, free space and certificates' ends; a file that is not there shows nothing."""
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_file():
                yield metrics.FILE_SIZE.reads(path.stat().st_size, str(path))
                if (end := _end_of_certificate(path)) is not None:
                    yield metrics.CERTIFICATE_END.reads(end, str(path))
            yield metrics.FILE_FREE.reads(shutil.disk_usage(path).free, str(path))


def _end_of_certificate(path: Path) -> float | None:
    with path.open("rb") as file:
        head = file.read(_LARGEST_CERTIFICATE)
    if not head.startswith(b"-----BEGIN CERTIFICATE"):
        return None
    from cryptography.x509 import load_pem_x509_certificate

    with contextlib.suppress(ValueError):
        return load_pem_x509_certificate(head).not_valid_after_utc.timestamp()
    return None


def history(path: Path) -> Iterator[Reading]:
    """Yield the readings after each event of a journal, with its time.

    Raises:
        DataError: there is no journal at ``path``.
    """
    tally, latest = RunTally(path.parent.name), -math.inf
    by_time: dict[float, list[Reading]] = {}
    for event in read_journal(path):
        tally.apply(event)
        if not math.isnan(tally.last_event):
            # No time is shown twice, the clock set back or not.
            latest = max(latest, tally.last_event)
            by_time[latest] = list(tally.readings())
    for seconds, readings in by_time.items():
        yield from (reading._replace(at=seconds) for reading in readings)
