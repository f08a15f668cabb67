"""Cache of noise multipliers on disk: each is computed by one process, and read by all others.

A number counts only with the whole key that it was computed for and a checksum: a flipped digit
must not pass for less noise. What is damaged is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from hdpfl_flower.system.files import replace_file
from hdpfl_flower.system.locks import one_at_a_time
from hdpfl_flower.system.paths import cache_dir

_PATIENCE = 120.0
"""Seconds to wait for a process that computes the same number; a search takes at most some ten."""


def cached(key: str, compute: Callable[[], float]) -> float:
    """Return the number of ``key``, read from its file or computed and written there."""
    path = _folder() / f"{_digest(key)}.json"
    value = _read(path, key)
    if value is None:
        with one_at_a_time(path.with_suffix(".lock"), _PATIENCE):
            value = _read(path, key)  # the process that was waited for has written it
            if value is None:
                value = compute()
                replace_file(path, _entry(key, value).encode())
    return value


def cached_in_book(key: str, of: float, compute: Callable[[], float]) -> float:
    """Return the number that ``key`` has for ``of``, of thousands in one file.

    Args:
        key: of the file.
        of: what the numbers in it differ by.
        compute: makes this one.
    """
    path = _folder() / f"{_digest(key)}.book"
    book = _book(path, key)
    value = book.read(of)
    if value is None:
        with one_at_a_time(path.with_suffix(f".{_digest(repr(of))[:16]}.lock"), _PATIENCE):
            value = book.read(of)
            if value is None:
                value = compute()
                book.add(of, value)
    return value


class _Book:
    """A file of numbers, a line each, to which any process adds lines."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key, self._known, self._end = path, key, dict[float, float](), 0

    def read(self, of: float) -> float | None:
        """Return the number for ``of``, which another process may have added just now."""
        if of not in self._known:
            self._read_on()
        return self._known.get(of)

    def add(self, of: float, value: float) -> None:
        """Add a number in one write."""
        # A line before it, too: a crash in mid-write tears one line and not the next.
        text = f"\n{_entry(f'{self._key} {of!r}', value)}\n"
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        with os.fdopen(os.open(self._path, flags, 0o600), "ab") as file:
            file.write(text.encode())
        self._known[of] = value

    def _read_on(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._end)
                lines = file.read()
        except OSError:
            return
        # A line that is being written ends with the next reading.
        whole = lines[: lines.rfind(b"\n") + 1]
        self._end += len(whole)
        for line in whole.splitlines():
            try:
                of = float(json.loads(line)[0].rpartition(" ")[2])
            except (ValueError, TypeError, LookupError, AttributeError):
                continue
            value = _value(line.decode(errors="replace"), f"{self._key} {of!r}")
            if value is not None:
                self._known[of] = value


@lru_cache(maxsize=64)
def _book(path: Path, key: str) -> _Book:
    return _Book(path, key)


def _folder() -> Path:
    folder = cache_dir() / "noise-multipliers"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def _read(path: Path, key: str) -> float | None:
    try:
        return _value(path.read_text(), key)
    except (OSError, ValueError):
        return None  # not computed yet, or damaged


def _value(text: str, key: str) -> float | None:
    """Return the number in an entry; None where it is not exactly that of ``key``."""
    try:
        value = float(json.loads(text)[1])
    except (ValueError, TypeError, LookupError):
        return None
    # Key and checksum are compared as a whole, so a damaged file counts as none.
    return value if text == _entry(key, value) else None


def _entry(key: str, value: float) -> str:
    return json.dumps([key, value, _digest(f"{key} {value!r}")])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
