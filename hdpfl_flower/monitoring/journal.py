"""Append-only record of a run for plots and exporters, JSON lines."""

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
from hdpfl_flower.monitoring.rejection import rejections_in

Event = dict[str, Any]


class Journal:
    """Journal of a run, open for writing.

    Guarantees:
        A line is complete in the file once :meth:`write` returns, and does not change; a crash
        can tear only the last line, which readers skip.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending and create its folder."""
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
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        said = {key: plain(value) for key, value in facts.items()}
        line = {"event": event, "at": moment, **self._format, **said}
        self._format = {}
        # A line in one write, and flushed: a crash of the process loses no earlier line.
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        return line

    def hold(self) -> bool:
        """Lock the journal for this process; False if already locked."""
        try:
            # The system frees it whenever the process ends.
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def sync(self) -> int:
        """Flush all lines to disk and return their total bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> list[Event]:
    """Return a journal's events in order, skipping torn lines.

    Raises:
        DataError: there is no journal at ``path``, or it has no number or a newer version's.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            events = list(parse_events(file))
    except FileNotFoundError:
        raise DataError(f"no journal at {path}; name a run's folder, or its id") from None
    check_format(events)
    return events


def check_format(events: Sequence[Event]) -> None:
    """Refuse a journal that this version cannot read; each process wrote its number once."""
    for number, event in enumerate(events):
        if number == 0 or "format" in event:
            formats.JOURNAL.check(event.get("format"))


def finished_rounds(events: Sequence[Event]) -> list[Event]:
    """Return the rounds among ``events``, numeric fields as floats, also infinite and NaN ones.

    A journal holds every attempt at its run. The rounds are those of the last attempt that finished
    any: a restart replaces all rounds, a resumed run those after its checkpoint.

    Raises:
        DataError: a round lacks a field, or a field is wrong.
    """
    rounds: dict[int, Event] = {}
    last_kept = None  # earlier rounds up to this number are kept once another round is finished
    try:
        for event in events:
            if event["event"] == "run-started":
                last_kept = 0
            elif event["event"] == "run-resumed":
                last_kept = int(event.get("after_round", len(rounds)))
            elif event["event"] == "round":
                if last_kept is not None:
                    rounds = {
                        number: fact for number, fact in rounds.items() if number <= last_kept
                    }
                    last_kept = None
                finished = _round(event)
                rounds[finished["round"]] = finished
        return list(rounds.values())
    except (LookupError, TypeError, ValueError, AttributeError):
        raise DataError("the journal is damaged: a round in it is incomplete") from None


def _round(event: Event) -> Event:
    if not set(event["accepted"]) <= set(event["asked"]):
        raise ValueError("a site that was not asked")
    if not isinstance(event.get("tested", {}), dict):
        raise TypeError("not the sites that were tested")
    rejections_in(event)
    metrics = {name: float(value) for name, value in event["metrics"].items()}
    weights = [float(weight) for weight in event.get("weights", [])]
    return {**event, "round": int(event["round"]), "metrics": metrics, "weights": weights}


def parse_events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events in a journal's lines; skip other lines."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "event" in event:
            yield event


def plain(value: object) -> object:
    """Return ``value`` for JSON; non-finite numbers become their names."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else str(value)
    return value.item() if isinstance(value, np.generic) else value
