"""Bugs of the privacy kernel, as ``bugs/*.txt`` list them.

A file's first line is its title. ``in FILE`` holds for the bugs below it. A bug is four kinds of
lines: ``# name``, the text as it stands there once (``-``), what it becomes (``+``, none where it
is removed) and, below ``tests/``, the test that must fail (``> test``).
"""

from __future__ import annotations

from pathlib import Path

from tests.mutants.runner import Mutant

SUBJECTS = sorted((Path(__file__).parent / "bugs").glob("*.txt"))


def bugs_of(text: str) -> tuple[str, list[Mutant]]:
    """Return the title and the bugs of a list."""
    title, *lines = text.splitlines()
    file, found = "", []
    bug: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=2):
        if line.startswith("in "):
            file = line[3:]
        elif line[:1] in {"#", "-", "+"}:
            bug.setdefault(line[0], []).append(line[1:])
        elif line.startswith("> "):
            (name,), old, new = bug["#"], "\n".join(bug["-"]), "\n".join(bug.get("+", []))
            found.append(Mutant(name.strip(), file, old, new, line[2:]))
            bug = {}
        elif line:
            raise ValueError(f"{title}: line {number} is none of a bug's")
    if bug:
        raise ValueError(f"{title}: the last bug names no test")
    return title, found


TABLE = dict(bugs_of(path.read_text()) for path in SUBJECTS)
MUTANTS = tuple(mutant for found in TABLE.values() for mutant in found)
