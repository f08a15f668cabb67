"""Processes are found again, stopped with all they started, and never confused with others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy"))

import processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(120)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True); time.sleep(120)",
]
PARENT = [
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'],"
    " start_new_session=True)\n"
    "print(c.pid, flush=True); time.sleep(120)",
]


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
    start("parent", PARENT)
    child = int(written(tmp_path / "log"))
    assert child in processes.table()
    processes.stop(["parent"], tmp_path)
    assert child not in processes.table()


def test_what_does_not_end_by_itself_is_killed(
    tmp_path: Path, start: Callable[[str, list[str]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.5)
    pid = start("stubborn", STUBBORN)
    assert "ready" in written(tmp_path / "log")
    assert processes.stop(["stubborn"], tmp_path) == ["stubborn"]
    assert pid not in processes.table()
