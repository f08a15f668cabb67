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


class Pair:
    """``run_pair.py`` on two processes that write their ids and sleep."""

    def __init__(self, folder: Path) -> None:
        files = [folder / "node", folder / "tasks"]
        program = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\n'); "
        commands = [
            ["--", sys.executable, "-c", program + "time.sleep(60)", str(file)] for file in files
        ]
        script = str(ROOT / "deploy" / "run_pair.py")
        self.process = subprocess.Popen([sys.executable, script, *commands[0], *commands[1]])
        until(lambda: all(file.exists() and "\n" in file.read_text() for file in files))
        self.node, self.tasks = (int(file.read_text()) for file in files)


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


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_both_end_with_what_started_them(pair: Pair, number: signal.Signals) -> None:
    pair.process.send_signal(number)
    pair.process.wait(20)
    until(lambda: not command_of(pair.node) + command_of(pair.tasks))
