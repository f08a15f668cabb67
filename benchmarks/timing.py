"""Robust timing ratios: variants alternate in one process, CPU time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from rich import box
from rich.console import Console
from rich.table import Table

console = Console(width=160)


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    repeats: int = 9,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """Return each variant's median seconds, run alternately after a warm-up."""
    for run in variants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            begin = clock()
            run()
            seconds[name].append(clock() - begin)
    return {name: statistics.median(times) for name, times in seconds.items()}


def show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a results table as Markdown, as in ``benchmarks/README.md``."""
    table = Table(box=box.MARKDOWN)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(f"\n### {title}\n")
    console.print(table)
