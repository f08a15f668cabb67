"""Processes are found again, stopped with all they started, and never confused with others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))

import processes

from tests.e2e.engines import ROOT, command_of

SLEEP = [sys.executable, "-c", "import time; time.sleep(120)"]
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True); time.sleep(120)"
)
PARENT = (
    "import subprocess, sys, time\n"
    "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'],"
    " start_new_session=True)\n"
    "print(c.pid, flush=True); time.sleep(120)"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, list[str]], int]]:
    begun: list[str] = []

    def start_one(name: str, command: list[str]) -> int:
        begun.append(name)
        return processes.start(name, command, tmp_path, tmp_path / "log", dict(os.environ))

    yield start_one
    processes.stop(begun, tmp_path)


def written(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not path.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.05)
    return path.read_text()


def test_a_process_is_found_and_stopped(
    tmp_path: Path, start: Callable[[str, list[str]], int]
) -> None:
    pid = start("one", SLEEP)
    assert processes.find("one", tmp_path) == pid
    assert processes.names(tmp_path) == ["one"]
    assert processes.stop(["one"], tmp_path) == ["one"]
    assert processes.find("one", tmp_path) is None
    assert pid not in processes.table()
    assert processes.stop(["one", "never"], tmp_path) == []


def test_an_orphan_is_asked_once(tmp_path: Path, start: Callable[[str, list[str]], int]) -> None:
    """A second SIGTERM ends Flower before it has signed a node off."""
    file = tmp_path / "signals"
    file.touch()
    slow = (
        "import signal, sys, time\n"
        "signals = open(sys.argv[1], 'a', buffering=1)\n"
        "signal.signal(signal.SIGTERM, lambda *_: signals.write('TERM\\n'))\n"
        "signals.write('ready\\n')\n"
        "while 'TERM' not in open(sys.argv[1]).read(): time.sleep(0.02)\n"
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end: time.sleep(0.02)\n"
    )
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    start("one", [sys.executable, "-c", parent, slow, str(file)])
    written(file)
    assert processes.stop(["one"], tmp_path) == ["one"]
    assert file.read_text().split() == ["ready", "TERM"]


def test_a_recycled_id_is_another_process(tmp_path: Path) -> None:
    other = subprocess.Popen(SLEEP)
    try:
        note = json.dumps({"pid": other.pid, "birth": "long ago"})
        (tmp_path / "one.json").write_text(note)
        assert processes.find("one", tmp_path) is None
        assert processes.stop(["one"], tmp_path) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_all_child_processes_end(tmp_path: Path, start: Callable[[str, list[str]], int]) -> None:
    start("parent", [sys.executable, "-c", PARENT])
    child = int(written(tmp_path / "log"))
    assert child in processes.table()
    processes.stop(["parent"], tmp_path)
    assert child not in processes.table()


def test_what_does_not_end_by_itself_is_killed(
    tmp_path: Path, start: Callable[[str, list[str]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.5)
    pid = start("stubborn", [sys.executable, "-c", STUBBORN])
    assert "ready" in written(tmp_path / "log")
    assert processes.stop(["stubborn"], tmp_path) == ["stubborn"]
    assert pid not in processes.table()


# --- a node and the process that runs its tasks end together, however they end


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
