"""Processes that outlive their command and are found again reliably.

One file per process holds its id and start time: an id alone may have been given to another one
meanwhile. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TERM_SECONDS = 20.0
"""Seconds until a terminating process is killed."""


class Living(NamedTuple):
    """Start time and parent of a process.

    The start time distinguishes it from a later one of the same id.
    """

    birth: str
    parent: int


def start(name: str, command: list[str], folder: Path, log: Path, env: dict[str, str]) -> int:
    """Start ``command`` in a new session, logging to ``log``; return its id."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    born = table().get(process.pid)
    birth = born.birth if born else "ended at once"
    (folder / f"{name}.json").write_text(json.dumps({"pid": process.pid, "birth": birth}))
    return process.pid


def find(name: str, folder: Path) -> int | None:
    """Return the id of the process started as ``name``, if alive."""
    try:
        noted = json.loads((folder / f"{name}.json").read_text())
        pid, birth = int(noted["pid"]), noted["birth"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    living = table().get(pid)
    return pid if living and living.birth == birth else None


def names(folder: Path) -> list[str]:
    """Return the sorted names of processes started and not stopped."""
    return sorted(path.stem for path in folder.glob("*.json"))


def stop(wanted: Iterable[str], folder: Path) -> list[str]:
    """Stop the named processes and their children; return living names."""
    living = {name: pid for name in wanted if (pid := find(name, folder)) is not None}
    family = _family(living.values())
    for pid in living.values():
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + TERM_SECONDS
    asked: set[int] = set()
    while (left := _still(family)) and time.monotonic() < deadline:
        if not left.keys() & set(living.values()):  # orphans that ignore the end
            for pid in left.keys() - asked:  # once: a second signal ends Flower's orderly exit
                _signal(pid, signal.SIGTERM)
            asked |= left.keys()
        time.sleep(0.2)
    for pid in {**_family(left), **left}:
        _signal(pid, signal.SIGKILL)
    while _still(family) and time.monotonic() < deadline + TERM_SECONDS:
        time.sleep(0.05)
    for name in living:
        (folder / f"{name}.json").unlink(missing_ok=True)
    return list(living)


def table() -> dict[int, Living]:
    """Return every living process of this machine, without zombies."""
    if not Path("/proc/self/stat").exists():
        return _table_of_ps()
    living = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                # pid (name, which may hold anything) state ppid … starttime, proc(5)
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                living[int(path.name)] = Living(fields[19], int(fields[1]))
    return living


def _table_of_ps() -> dict[int, Living]:
    command = ["ps", "-axo", "pid=,ppid=,stat=,lstart="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = [line.split(maxsplit=3) for line in lines]
    return {int(r[0]): Living(r[3], int(r[1])) for r in rows if not r[2].startswith("Z")}


def _family(roots: Iterable[int]) -> dict[int, str]:
    """Return the start times of ``roots`` and all their descendants."""
    living = table()
    births = {pid: living[pid].birth for pid in roots if pid in living}
    grown = True
    while grown:
        more = {
            p: row.birth for p, row in living.items() if row.parent in births and p not in births
        }
        births.update(more)
        grown = bool(more)
    return births


def _still(family: dict[int, str]) -> dict[int, str]:
    living = table()
    return {p: birth for p, birth in family.items() if p in living and living[p].birth == birth}


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
