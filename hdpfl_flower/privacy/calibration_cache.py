"""Disk cache of noise multipliers, one computing process each.

A number counts only with the whole key that it was computed for and a checksum: a flipped digit
must not pass for less noise. What is damaged is computed again. A checksum tells damage and no
forgery, so that a folder or a file that another user owns or may write to is not used, and no
deployed site reads its noise from here (``accounting.calibrate``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from hdpfl_flower.system.locks import one_at_a_time
from hdpfl_flower.system.paths import cache_dir, home
from hdpfl_flower.system.printable import site_log

log = site_log()

_PATIENCE = 120.0
"""Seconds to wait for another process's search."""


def cached_in_book(key: str, of: float, compute: Callable[[], float]) -> float:
    """Return the number that ``key`` has for ``of``, of thousands in one file.

    Args:
        key: of the file.
        of: what the numbers in it differ by.
        compute: makes this one.
    """
    folder = _folder()
    if folder is None:
        return compute()
    path = folder / f"{_digest(key)}.book"
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
    """A file of numbers, appended to by any process."""

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
        self._known[of] = value
        with contextlib.suppress(OSError):  # a full disk: the number is in memory
            flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW
            with os.fdopen(os.open(self._path, flags, 0o600), "ab") as file:
                file.write(text.encode())

    def _read_on(self) -> None:
        try:
            opened = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return
        with os.fdopen(opened, "rb") as file:
            if not _is_own(os.fstat(opened)):
                return
            file.seek(self._end)
            lines = file.read()
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


def _folder() -> Path | None:
    """Return the cache's folder, or None if unsafe."""
    with contextlib.suppress(OSError):
        folder = cache_dir() / "noise-multipliers"
        folder.mkdir(exist_ok=True, mode=0o700)
        found = folder.lstat()  # of a link itself, which is no folder
        if stat.S_ISDIR(found.st_mode) and _is_own(found):
            return folder
    _warn_once(home())
    return None


@lru_cache(maxsize=1)
def _warn_once(folder: Path) -> None:
    log.warning(
        "%s/cache/noise-multipliers is not used: it is no folder that this user owns and no other "
        "may write to; remove it",
        folder,
    )


def _is_own(found: os.stat_result) -> bool:
    """Return whether this user owns a file or folder, and no other may write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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
