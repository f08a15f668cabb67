"""Output of findings: terminal, Markdown and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from rich.measure import Measurement
from rich.table import Table as RichTable

from hdpfl_flower.system.files import replace_file
from server_app.progress import console
from studies.framework.study import Findings, Study, Table


def save(study: Study, findings: Findings, folder: Path, command: str) -> None:
    """Write ``table.md`` and ``results.json`` into ``folder``."""
    text = "\n".join(
        [f"# {study.title}", "", f"{study.source}. `{command}`", ""]
        + [line for table in findings.tables for line in (*markdown(table), "")]
        + [f"- {note}" for note in findings.notes]
    )
    replace_file(folder / "table.md", (text + "\n").encode(), mode=0o644)
    content = {
        "study": study.name,
        "source": study.source,
        "command": command,
        **findings.numbers,
        "notes": list(findings.notes),
    }
    data = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    replace_file(folder / "results.json", data.encode(), mode=0o644)


def show(findings: Findings) -> None:
    """Print the tables and the notes."""
    for table in findings.tables:
        console.print(_fitted(table))
    for note in findings.notes:
        console.print(f"- {note}", markup=False)


def _fitted(table: Table) -> RichTable:
    """Return the table to print, transposed if otherwise too wide."""
    shown = _rich(table.title, (table.head, *table.rows))
    wanted = Measurement.get(console, console.options.update(max_width=10_000), shown).maximum
    if wanted > console.width and len(table.head) > len(table.rows) + 1:
        return _rich(table.title, tuple(zip(table.head, *table.rows, strict=True)))
    return shown


def _rich(title: str, lines: tuple[tuple[str, ...], ...]) -> RichTable:
    shown = RichTable(title=title)
    for number, head in enumerate(lines[0]):
        shown.add_column(head, justify="right" if number else "left")
    for line in lines[1:]:
        shown.add_row(*line)
    return shown


def markdown(table: Table) -> list[str]:
    """Return a table's Markdown lines, with its title above."""
    return [
        f"**{table.title}**",
        "",
        f"| {' | '.join(table.head)} |",
        "|---" * len(table.head) + "|",
        *(f"| {' | '.join(row)} |" for row in table.rows),
    ]
