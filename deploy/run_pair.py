"""Two processes that belong together: a node and the one that runs its tasks.

    python deploy/run_pair.py -- COMMAND … -- COMMAND …

When one of them ends, the other is ended, too. On separate machines systemd does this
(``deploy/systemd``). Standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import time

POLL_SECONDS = 0.2


def main(words: list[str]) -> int:
    """Run both until one ends; return its exit status."""
    middle = words.index("--", 1)
    both = [subprocess.Popen(words[1:middle]), subprocess.Popen(words[middle + 1 :])]
    while all(process.poll() is None for process in both):
        time.sleep(POLL_SECONDS)
    ended = next(process for process in both if process.poll() is not None)
    for process in both:
        process.terminate()
    for process in both:
        process.wait()
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
