"""Lines of a long table as they are read: a command shows them on a terminal, a run to nobody.

How many records a site has is private: it is on the operator's screen, and never in a log.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LINES_AT_A_TIME = 1_000_000
on_lines: ContextVar[Callable[[int], object]] = ContextVar("on_lines", default=lambda _: None)
"""Called with the lines read so far, each :data:`LINES_AT_A_TIME`."""


@contextmanager
def shown_on_a_terminal() -> Iterator[None]:
    """Show in the body, where stderr is a terminal, how far a long table is read."""
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
