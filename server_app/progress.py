"""Progress in a terminal: a bar with an estimate of the time left, for work that goes by rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.status import Status

console = Console()


def waiting(what: str) -> Status:
    """Return a context that shows ``what`` is being done, of work whose end is not known."""
    return console.status(what)


@contextmanager
def rounds_bar(total: int, title: str) -> Iterator[Callable[[], None]]:
    """Show a bar over ``total`` rounds on a terminal; yields what to call after each.

    A notebook asks programs for colours, and would show every state of the bar as a line.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds,"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeRemainingColumn(),
        TextColumn("to go"),
    )
    on_terminal = console.file.isatty()
    with Progress(*columns, console=console, transient=True, disable=not on_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
