"""Private values of a site, rare enough to be recognised anywhere, and where to look for them.

A number is looked for as text in every spelling that prints eight of its digits (seven, where a
power of ten follows), and as the eight bytes of a double. Neither turns up by chance: in 100 MB of
random bytes a double is found with probability 1e8 · 2⁻⁶⁴ < 1e-11; of 1,000 other numbers that are
printed as long one begins with the same eight digits with probability 1e3 · 2e-8, and clocks, whose
seconds have two digits before the point, do not count. Floats of four bytes are not looked for: in
10 MB one is found by chance with probability 1e7 · 2⁻³² = 0.2 %. The model, which is short, is
compared number by number instead.
"""

from __future__ import annotations

import re
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, ROUND_UP, Decimal
from pathlib import Path


@dataclass(frozen=True)
class Canary:
    """What a private value looks like in bytes.

    Attributes:
        anywhere: bytes that are it wherever they stand.
        words: bytes that are it where no digit, point or letter precedes them.
        closed: whether no digit may follow a word.
    """

    anywhere: tuple[bytes, ...] = ()
    words: tuple[bytes, ...] = ()
    closed: bool = False

    def is_in(self, content: bytes) -> bool:
        """Tell whether ``content`` holds the value."""
        return any(form in content for form in self.anywhere) or any(
            self._stands_in(content, word) for word in self.words
        )

    def _stands_in(self, content: bytes, word: bytes) -> bool:
        place = content.find(word)
        while place >= 0:
            end = place + len(word)
            before, after = content[max(place - 1, 0) : place], content[end : end + 1]
            if not (before.isalnum() or before == b".") and not (self.closed and after.isdigit()):
                return True
            place = content.find(word, place + 1)
        return False


Canaries = Mapping[str, Canary]


def text(value: str) -> Canary:
    """Return a text, also where every character takes two bytes."""
    return Canary(anywhere=(value.encode(), value.encode("utf-16-le")))


def number(value: float) -> Canary:
    """Return a float, printed in any of the usual ways, or as a double."""
    exact = Decimal(repr(value))
    power = exact.adjusted()
    words = {f"{value:e}".split("e")[0] + "e"}
    for rounding in (ROUND_DOWN, ROUND_UP):
        rounded = exact.quantize(Decimal(1).scaleb(power - 7), rounding)
        words |= {f"{rounded:f}", f"{rounded.scaleb(-power):f}"}
    return Canary(
        (value.hex().encode(), *double(value).anywhere), tuple(word.encode() for word in words)
    )


def double(value: float) -> Canary:
    """Return the eight bytes of a float that has too few digits to be told from others in print."""
    return Canary(anywhere=tuple(struct.pack(order + "d", value) for order in "<>"))


def setting(key: str, value: int) -> Canary:
    """Return a whole number beside its name, as TOML, JSON, Python and logs have it."""
    names = {key, key.replace("-", "_"), key.replace("-", " ")}
    marks = (" = ", "=", ": ", ":", " ", '": ', '":', "': ")
    return Canary(
        words=tuple(f"{n}{mark}{value}".encode() for n in names for mark in marks), closed=True
    )


def found_in(content: bytes, canaries: Canaries) -> set[str]:
    """Return the names of the canaries that ``content`` holds."""
    return {name for name, canary in canaries.items() if canary.is_in(content)}


def files_below(folder: Path, spared: Iterable[Path]) -> Iterator[Path]:
    """Yield every file below ``folder`` but those ``spared``."""
    kept = set(spared)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path not in kept:
            yield path


@dataclass
class Sampler:
    """Looks at processes and at some files again and again, in a thread of its own.

    Attributes:
        canaries: what to look for.
        mark: stands in the arguments or the environment of the processes that it looks at.
        files: files that change while a run goes on.
        payload: finds what is to be collected from the files.
        found: canaries by the place where they were.
        commands: the name of every program that ran.
        payloads: what was collected.
        samples: how often it looked.
    """

    canaries: Canaries
    mark: bytes
    files: tuple[Path, ...] = ()
    payload: re.Pattern[bytes] = field(default_factory=lambda: re.compile(b"(?!)"))
    found: dict[str, set[str]] = field(default_factory=dict)
    commands: set[str] = field(default_factory=set)
    payloads: set[bytes] = field(default_factory=set)
    samples: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _searched: dict[str, bytes] = field(default_factory=dict)
    """The last content of each place: what was there then is not searched again."""

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for process in Path("/proc").iterdir():
                if process.name.isdigit():
                    self._look_at(process)
            if self.samples % 5 == 0:
                for path in self.files:
                    new = self._note(path.name, _read(path))
                    self.payloads.update(self.payload.findall(new))
            self.samples += 1
            time.sleep(0.05)

    def _look_at(self, process: Path) -> None:
        """Look at the arguments, which ``ps`` shows to everybody, and at the environment."""
        arguments, environment = _read(process / "cmdline"), _read(process / "environ")
        if self.mark not in arguments and self.mark not in environment:
            return
        words = [word for word in arguments.split(b"\0") if not word.startswith(b"-")]
        for word in words[:3]:  # a script's name stands behind its Python's and hdpfl-patient
            self.commands.add(Path(word.decode(errors="replace")).name)
        self._note(f"arguments of {process.name}", arguments)
        self._note(f"environment of {process.name}", environment)

    def _note(self, place: str, content: bytes) -> bytes:
        """Search what is new in ``content`` since the last look at ``place``; return it."""
        new = changed(self._searched.get(place, b""), content)
        self._searched[place] = content
        if names := found_in(new, self.canaries):
            self.found.setdefault(place, set()).update(names)
        return new


def changed(old: bytes, new: bytes, block: int = 4096, margin: int = 256) -> bytes:
    """Return the blocks of ``new`` that are not those of ``old``, each with what is around it.

    Whatever is at most ``margin`` long and has a changed byte lies in one piece in it.

    >>> changed(b"aaaabbbbcccc", b"aaaabxbbcccc", block=4, margin=1)
    b'abxbbc\\x00'
    """
    if old == new:
        return b""
    pieces = (
        new[max(start - margin, 0) : start + block + margin]
        for start in range(0, len(new), block)
        if new[start : start + block] != old[start : start + block]
    )
    return b"".join(piece + b"\0" for piece in pieces)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or another user's
        return b""
