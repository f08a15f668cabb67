"""Append-only record of a run: one JSON object a line, read by plots, reports and exporters."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower import formats
from hdpfl_flower.errors import DataError

Event = dict[str, Any]


class Journal:
    """A run's journal, open for writing.

    Guarantees:
        A line that :meth:`write` returned from is in the file, whole, and stays as it is; a crash
        can tear the last line alone, which readers skip.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending; its folder is made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes() if path.exists() else b""
        self._file = path.open("a", encoding="utf-8")
        self._format: Event = {"format": formats.JOURNAL.newest}
        if before and not before.endswith(b"\n"):  # a crash tore the last line
            self._file.write("\n")
            self._file.flush()

    def write(self, event: str, **facts: object) -> Event:
        """Append one event with its time (UTC) and return it.

        The first event of each process carries the number of the journal's format.
        """
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        said = {key: plain(value) for key, value in facts.items()}
        line = {"event": event, "at": at, **self._format, **said}
        self._format = {}
        # A line in one write, and flushed: a crash of the process loses nothing written before.
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        return line

    def hold(self) -> bool:
        """Lock the journal for this process. Returns False if another process holds it."""
        try:
            # The system frees it when the process ends, however it ends.
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def sync(self) -> int:
        """Wait until the disk has every line; return their bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> list[Event]:
    """Return the events of a journal in order; a line torn by a crash is skipped.

    Raises:
        DataError: there is no journal at ``path``, or it is of a newer version.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            events = list(parse_events(file))
    except FileNotFoundError:
        raise DataError(f"no journal at {path}; name a run's folder, or its id") from None
    for event in events:  # several numbers, where a later version resumed the run
        formats.JOURNAL.check(event.get("format"))
    return events


def finished_rounds(events: Sequence[Event]) -> list[Event]:
    """Return the rounds among ``events``, their numbers as floats, infinite and NaN ones too.

    A journal holds every attempt at its run. The rounds are those of the last one that finished
    any: one that began anew replaces all rounds, one that resumed those after its checkpoint.

    Raises:
        DataError: a round lacks a field, or has a wrong one.
    """
    rounds: dict[int, Event] = {}
    kept = None  # of the rounds before, those up to it are kept once another round is finished
    try:
        for event in events:
            if event["event"] == "run-started":
                kept = 0
            elif event["event"] == "run-resumed":
                kept = int(event.get("after_round", len(rounds)))
            elif event["event"] == "round":
                if kept is not None:
                    rounds = {number: one for number, one in rounds.items() if number <= kept}
                    kept = None
                found = _round(event)
                rounds[found["round"]] = found
        return list(rounds.values())
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DataError("the journal is damaged: a round in it is not whole") from None


def _round(event: Event) -> Event:
    if not set(event["accepted"]) <= set(event["asked"]):
        raise ValueError("a site that was not asked")
    if not isinstance(event.get("tested", {}), dict):
        raise TypeError("not the sites that were tested")
    metrics = {name: float(value) for name, value in event["metrics"].items()}
    weights = [float(weight) for weight in event.get("weights", [])]
    return {**event, "round": int(event["round"]), "metrics": metrics, "weights": weights}


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events in the lines of a journal; other lines are skipped."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


def plain(value: object) -> object:
    """Return ``value`` as JSON has it; numbers that JSON lacks become their names."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else str(value)
    return value.item() if isinstance(value, np.generic) else value
