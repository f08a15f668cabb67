"""Progress bar in a terminal, with the time left."""

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
    """Return a context that shows a task of unknown length."""
    return console.status(what)


@contextmanager
def rounds_bar(total: int, title: str) -> Iterator[Callable[[], None]]:
    """Show a bar over ``total`` rounds; yields its update function.

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
