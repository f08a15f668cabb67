"""Output of findings: terminal, Markdown and JSON."""

from __future__ import annotations

import json
from pathlib import Path

from hdpfl_flower.system.files import replace_file
from hdpfl_tools.coordinator.progress import console, make_table
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
        console.print(make_table(table.title, table.head, table.rows))
    for note in findings.notes:
        console.print(f"- {note}", markup=False)


def markdown(table: Table) -> list[str]:
    """Return a table's Markdown lines, with its title above."""
    return [
        f"**{table.title}**",
        "",
        f"| {' | '.join(table.head)} |",
        "|---" * len(table.head) + "|",
        *(f"| {' | '.join(row)} |" for row in table.rows),
    ]
