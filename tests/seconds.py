"""Tests that ``make check`` leaves out, of half a second or more: ``seconds.txt``.

    pytest -n 2 --dist worksteal -m "not slow and not engines and …" --durations=0 > LOG
    python -m tests.seconds LOG

The table has a test function a line: those whose cases took so long in all. Unlike slow ones they
may kill mutants, and ``make mutants`` runs them. The tests of what the
server can see, in ``tests/privacy``, are never left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("seconds.txt")
LEAST = 0.5
"""Seconds, of all cases of a function."""
OTHERS = ("slow", "engines", "gpu", "prometheus", "docker")
"""Marks of tests that ``make check`` leaves out in any case."""
ALWAYS = "tests/privacy/"


def listed() -> frozenset[str]:
    """Return the functions in the table, as pytest names them without their parameters."""
    return frozenset(TABLE.read_text().split())


def durations(log: str) -> dict[str, float]:
    """Return function → seconds of all its cases, from what ``--durations=0`` printed.

    >>> durations("0.50s call     tests/a.py::b[x y]\\n0.25s setup    tests/a.py::b[z]")
    {'tests/a.py::b': 0.75}
    """
    found: Counter[str] = Counter()
    for seconds, name in re.findall(r"^ *([\d.]+)s (?:call|setup|teardown) +([^\s\[]+)", log, re.M):
        found[name] += float(seconds)
    return dict(found)


def exists(name: str) -> bool:
    """Return whether a function is there, and no mark on all of it takes it out anyway."""
    file, *path = name.split("::")
    if not (ROOT / file).is_file():
        return False
    body, marks = _tree(file).body, ""
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            marks += ast.unparse(node.value)
    for part in path:
        nodes = [
            n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part
        ]
        if not nodes:
            return False
        decorators = [ast.unparse(decorator) for decorator in nodes[0].decorator_list]
        marks += " ".join(d for d in decorators if "parametrize" not in d)
        body = nodes[0].body
    return not any(f"mark.{other}" in marks for other in OTHERS)


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


if __name__ == "__main__":
    taken = durations(Path(sys.argv[1]).read_text())
    names = sorted(
        name
        for name, seconds in taken.items()
        if seconds >= LEAST and exists(name) and not name.startswith(ALWAYS)
    )
    TABLE.write_text("\n".join(names) + "\n")
    print(f"{len(names)} functions, {sum(taken[name] for name in names):.0f} seconds")
