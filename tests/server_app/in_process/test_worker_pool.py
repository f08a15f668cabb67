"""Workers end with the process that started them, also where that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from server_app.in_process.comparison import RunJob, compare

ROOT = Path(__file__).parents[3]
PATIENCE = 180.0


def wait_there(job: RunJob, _: object) -> list[dict[str, object]]:
    """Work that leaves the id of its process in the job's ``runs-dir``, and never ends."""
    (Path(job.config.server.runs_dir) / str(os.getpid())).touch()
    time.sleep(600)
    return []


@pytest.mark.slow
def test_workers_and_their_manager_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, __file__, str(tmp_path)], cwd=ROOT,
                              env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
        started = children_of(parent.pid)
        workers = {int(path.name) for path in tmp_path.iterdir()} - {parent.pid}
        assert len(workers) == 2
        assert workers < set(started)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(map(lives, started)))


def wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)],
                            capture_output=True, text=True, check=True)  # fmt: skip
    return [int(word) for word in listed.stdout.split()]


def lives(pid: int) -> bool:
    """Tell whether a process runs; one that ended and that nobody has asked for does not."""
    words = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")


if __name__ == "__main__":
    terms = RunConfig.parse({"runs-dir": sys.argv[1]})
    jobs = [RunJob(terms.updated(seed=seed), 2) for seed in (1, 2, 3)]
    list(compare(jobs, 3, lambda: None, wait_there))
