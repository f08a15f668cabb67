"""Two processes that belong together: a node and the one that runs its tasks.

    python deploy/run_pair.py -- COMMAND … -- COMMAND …

When one of them ends, the other is ended, too, and both when this process ends: neither would be
found again. On separate machines systemd does this (``deploy/systemd``). Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> int:
    """Run both until one ends; return its exit status, 128 + n where signal n ended it.

    SIGTERM ends both, and is sent to each once: Flower signs a node off at the first, and is ended
    by a second one before it has.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    middle, both = words.index("--", 1), list[subprocess.Popen[bytes]]()
    try:
        both.append(_start(words[1:middle]))
        both.append(_start(words[middle + 1 :]))
        while all(process.poll() is None for process in both):
            time.sleep(POLL_SECONDS)
        ended = next(process for process in both if process.poll() is not None)
    finally:
        for process in both:
            process.terminate()
        for process in both:
            process.wait()
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that is terminated when this one ends, even if killed; Linux alone."""
    if sys.platform != "linux":
        return subprocess.Popen(command)
    prctl, own = ctypes.CDLL(None).prctl, os.getpid()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != own:  # it ended before the call
            os._exit(1)

    return subprocess.Popen(command, preexec_fn=end_with_parent)  # noqa: PLW1509 - one thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
