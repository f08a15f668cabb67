"""The coordinator's exporter: the newest runs' journals, read as far as they are written.

One process for all runs, past and present: a port inside a ServerApp loses a run's last rounds, and
the second run of a machine never gets one. A journal is followed from where it was read to; a line
that is still being written waits for its end.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hdpfl_flower.monitoring.journal import parse_events, read_journal
from hdpfl_flower.monitoring.series import Reading
from server_app.monitoring.run_series import RunTally

log = logging.getLogger("hdpfl.server")

NEWEST = 20
"""Runs that are shown."""


@dataclass
class _Followed:
    """A journal, and how far it was read; another file in its place is read from its start."""

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
    """The runs in a folder; what was read of their journals is kept."""

    def __init__(self, folder: Path, newest: int = NEWEST) -> None:
        """Show the ``newest`` runs in ``folder``, those first whose journals were written last."""
        self._folder, self._newest = folder, newest
        self._followed: dict[Path, _Followed] = {}

    def readings(self) -> Iterator[Reading]:
        """Yield the readings of every run shown; one that cannot be read is logged and left out."""
        paths = self._journals()
        self._followed = {
            path: self._followed.get(path) or _Followed(path, RunTally(path.parent.name))
            for path in paths
        }
        for path, followed in self._followed.items():
            try:
                followed.catch_up()
                found = list(followed.tally.readings())
            except Exception as error:  # one run's journal must not hide the others
                log.warning("journal %s cannot be read: %s", path, type(error).__name__)
                continue
            yield from found

    def _journals(self) -> list[Path]:
        """Return the newest journals' paths, the newest first."""
        found = []
        for path in self._folder.glob("*/journal.jsonl"):
            try:
                found.append((path.stat().st_mtime_ns, path))
            except OSError:  # removed meanwhile
                continue
        return [path for _, path in sorted(found, reverse=True)[: self._newest]]


def history(path: Path) -> Iterator[Reading]:
    """Yield what the exporter would have shown after each event of a journal, with its time.

    Raises:
        DataError: there is no journal at ``path``.
    """
    tally, latest = RunTally(path.parent.name), -math.inf
    found: dict[float, list[Reading]] = {}
    for event in read_journal(path):
        tally.apply(event)
        if not math.isnan(tally.last_event):
            latest = max(
                latest, tally.last_event
            )  # no time is shown twice, the clock set back or not
            found[latest] = list(tally.readings())
    for at, readings in found.items():
        for reading in readings:
            yield reading._replace(at=at)
