"""Progress of reading long tables, shown only on a terminal.

The number of a site's records is private: it is shown on the operator's screen, never in a log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LINES_AT_A_TIME = 1_000_000
on_lines: ContextVar[Callable[[int], object]] = ContextVar("on_lines", default=lambda _: None)
"""Callback with the lines read so far, each :data:`LINES_AT_A_TIME`."""


@contextmanager
def shown_on_a_terminal() -> Iterator[None]:
    """Show reading progress in the body if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    shown = False

    def show(lines: int) -> None:
        nonlocal shown
        shown = True
        print(f"\rreading: {lines:,} lines", end="", file=sys.stderr, flush=True)

    before = on_lines.set(show)
    try:
        yield
    finally:
        on_lines.reset(before)
        if shown:
            print(file=sys.stderr)
