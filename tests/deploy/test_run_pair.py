"""A node and the process that runs its tasks end together, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.engines import ROOT, command_of

PROGRAM = """
import os, signal, sys, time
file = open(sys.argv[1], "a", buffering=1)
asked = []
def note(*_):
    asked.append(time.monotonic())
    file.write("signal\\n")
signal.signal(signal.SIGTERM, note)
file.write(f"{os.getpid()}\\n")
end = time.monotonic() + 60
while time.monotonic() < (asked[0] + 0.7 if asked else end):
    time.sleep(0.02)
"""
"""Ends .7 s after the first SIGTERM, and notes each."""


class Pair:
    """``run_pair.py`` on two processes that write their ids and what they get."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / "node", folder / "tasks"]
        commands = [["--", sys.executable, "-c", PROGRAM, str(file)] for file in self.files]
        script = str(ROOT / "deploy" / "run_pair.py")
        self.process = subprocess.Popen([sys.executable, script, *commands[0], *commands[1]])
        until(lambda: all(file.exists() and "\n" in file.read_text() for file in self.files))
        self.node, self.tasks = (int(file.read_text()) for file in self.files)


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "nothing came in 20 s"
        time.sleep(0.02)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for pid in (made.process.pid, made.node, made.tasks):
        if str(tmp_path) in command_of(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    made.process.wait()


@pytest.mark.parametrize("ended", ["node", "tasks"])
def test_when_one_is_killed_the_other_is_ended(pair: Pair, ended: str) -> None:
    os.kill(getattr(pair, ended), signal.SIGKILL)
    assert pair.process.wait(20) == 128 + signal.SIGKILL
    assert not command_of(pair.node) + command_of(pair.tasks)


def test_one_that_is_to_be_started_again_is_and_the_other_goes_on(tmp_path: Path) -> None:
    """As ``hdpfl-patient`` ends; then it ends otherwise, and the other one with it."""
    deaf = f"import os; os._exit({os.EX_TEMPFAIL})"
    once = f"import pathlib; p = pathlib.Path({str(tmp_path / 'was')!r})\nif not p.exists():\n"
    node = [sys.executable, "-c", f"{once}  p.touch(); {deaf}\nraise SystemExit(3)"]
    tasks = [sys.executable, "-c", PROGRAM, str(tmp_path / "tasks")]
    script = str(ROOT / "deploy" / "run_pair.py")
    done = subprocess.run(
        [sys.executable, script, "--", *node, "--", *tasks], check=False, timeout=40
    )
    assert done.returncode == 3
    assert (tmp_path / "tasks").read_text().splitlines()[1:] == ["signal"]


def test_sigterm_reaches_each_once_and_both_are_waited_for(pair: Pair) -> None:
    """At a second one Flower ends before it has signed its node off."""
    pair.process.terminate()
    assert pair.process.wait(20) == 128 + signal.SIGTERM
    assert not command_of(pair.node) + command_of(pair.tasks)
    assert [file.read_text().count("signal") for file in pair.files] == [1, 1]
