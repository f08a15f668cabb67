"""Test functions of half a second or more, with their times: ``seconds.txt``.

    pytest -n 2 --dist worksteal -m "not engines and not gpu and …" --durations=0 > LOG
    python -m tests.seconds LOG

A line has the seconds of all cases of a function. ``make check`` leaves out all of them but those
in ``tests/privacy``; ``make test`` leaves out those of ``LONG`` seconds or more, which
``make test-all`` runs. Unlike slow ones they may kill mutants, and ``make mutants`` runs them.
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
LEAST, LONG = 0.5, 2.0
"""Seconds of all cases of a function: left out of ``make check``, and of ``make test``."""
OTHERS = ("slow", "engines", "gpu", "prometheus", "docker")
"""Marks of tests that ``make test`` leaves out in any case."""
ALWAYS = "tests/privacy/"
"""Folder of tests that ``make check`` runs, unless they are long."""


def listed() -> dict[str, float]:
    """Return function → seconds; functions as pytest names them without their parameters."""
    rows = (line.split() for line in TABLE.read_text().splitlines())
    return {name: float(seconds) for seconds, name in rows}


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
    rows = {
        name: taken[name]
        for name in sorted(taken)
        if taken[name] >= (LONG if name.startswith(ALWAYS) else LEAST) and exists(name)
    }
    TABLE.write_text("".join(f"{seconds:.1f} {name}\n" for name, seconds in rows.items()))
    for least in (LEAST, LONG):
        left_out = [seconds for seconds in rows.values() if seconds >= least]
        print(f"{len(left_out)} functions of {least} s or more, {sum(left_out):.0f} seconds")
