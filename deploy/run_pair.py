"""Pair of processes: a node and its task runner.

    python deploy/run_pair.py -- COMMAND … -- COMMAND …

One that ends with status 75, as ``hdpfl-patient`` does, is started again. When one ends otherwise,
the other is also ended, and both when this process ends: otherwise they would not be found again.
On separate machines systemd does this (``deploy/systemd``). Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS, PAUSE_SECONDS = 0.2, 5.0
_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> int:
    """Run both until one ends; return its exit status.

    128 + n if signal n ended it.

    SIGTERM ends both, and is sent to each once: Flower signs a node off at the first, and a
    second one would end it before that.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    middle, both = words.index("--", 1), list[subprocess.Popen[bytes]]()
    commands = [words[1:middle], words[middle + 1 :]]
    try:
        both += map(_start, commands)
        while (ended := _ended(both)) is None or ended.returncode == os.EX_TEMPFAIL:
            if ended is not None:
                time.sleep(PAUSE_SECONDS)
                both[both.index(ended)] = _start(commands[both.index(ended)])
            time.sleep(POLL_SECONDS)
    finally:
        for process in both:
            process.terminate()
        for process in both:
            process.wait()
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


def _ended(both: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes] | None:
    return next((process for process in both if process.poll() is not None), None)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, even if killed; Linux only."""
    if sys.platform != "linux":
        return subprocess.Popen(command)
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return subprocess.Popen(command, preexec_fn=end_with_parent)  # noqa: PLW1509 - one thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
