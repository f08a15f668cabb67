"""Options and output of the commands: lists, JSON, lines, tables and progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import typer
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

console = Console()


def waiting(what: str) -> AbstractContextManager[object]:
    """Return a context that shows a task of unknown length, on a terminal alone.

    A notebook asks programs for colours, and would show every state of a spinner as a line.
    """
    return console.status(what) if console.file.isatty() else nullcontext()


def items(text: str | None) -> tuple[str, ...]:
    """Return the comma-separated values of an option.

    >>> items("fedavg, mmse,")
    ('fedavg', 'mmse')
    """
    return tuple(item.strip() for item in (text or "").split(",") if item.strip())


def show_json(facts: object) -> None:
    """Print facts as JSON."""
    typer.echo(json.dumps(facts, indent=1, ensure_ascii=False))


def show_line(line: str) -> None:
    """Print a line as it is: neither cut nor coloured, nor read as markup."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def make_table(
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Collection[str] | None = None,
) -> Table:
    """Return a table to print, its numbers at the right of their columns.

    Args:
        title: above it.
        head: titles of the columns.
        rows: a cell a column.
        words: the columns of words; by default the first alone.
    """
    table = Table(title=escape(title))
    for column in head:
        is_left = column in (head[:1] if words is None else words)
        # Folded, not cut: a name that ends with '…' is none.
        justify: JustifyMethod = "left" if is_left else "right"
        table.add_column(escape(column), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


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
