"""Tables of the results page: ``python -m studies.natural.page``.

``docs/results/tables/natural.json`` and ``school.json`` hold the checked-in numbers, and
the tables beside them depend only on them. With the paths of further ``results.json``
their cells are added first, or replace those of the same federation, ε and strategy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hdpfl_flower.errors import DataError, HDPFLError
from hdpfl_flower.system.files import replace_file
from studies.framework.output import markdown
from studies.natural.federations.catalog import NATURAL
from studies.natural.school import SCHOOL
from studies.natural.study import LEADERBOARD, NaturalStudy
from studies.natural.tables import ALONE, CONSTANT, cells_of

TABLES = Path(__file__).parents[2] / "docs" / "results" / "tables"
STUDIES: Mapping[str, NaturalStudy] = {study.name: study for study in (LEADERBOARD, SCHOOL)}


def text_of(name: str, content: Mapping[str, Any]) -> str:
    """Return the Markdown of a study's tables.

    Raises:
        DataError: ``content`` is no ``results.json`` of that study.
    """
    try:
        tables = STUDIES[name].tables(*cells_of(content))
    except (KeyError, TypeError, ValueError):
        raise DataError(f"the numbers of '{name}' are no results.json of this version") from None
    return "\n".join(line for table in tables for line in (*markdown(table), ""))


def merged(content: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged cells in catalog order; ``more`` replaces equal ones.

    If training alone is replaced by runs with other results, the cells compared with
    the earlier ones no longer state the share better off alone.
    """

    def key(cell: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(cell[part]) for part in ("federation", "epsilon", "rule"))

    before = {key(one): one["runs"] for one in content.get("cells", ())}
    again = {
        key(one)[:2]
        for one in more["cells"]
        if one["rule"] == ALONE and one["runs"] != before.get(key(one))
    }
    kept = [
        {**one, "better-off-alone": []} if key(one)[:2] in again else one
        for one in content.get("cells", ())
    ]
    cells = {key(one): one for one in (*kept, *more["cells"])}
    return {
        "cells": [cells[found] for found in sorted(cells, key=_rank)],
        CONSTANT: {**content.get(CONSTANT, {}), **more[CONSTANT]},
    }


def _rank(cell: tuple[str, ...]) -> tuple[int, bool, float]:
    """Return a cell's sort key: catalog order, then ε."""
    federation, epsilon, _ = cell
    names = list(NATURAL)
    return names.index(federation), " " in epsilon, float(epsilon.split()[0])


def write(paths: Sequence[Path], folder: Path = TABLES) -> None:
    """Merge ``paths`` into the numbers in ``folder``, and write the tables.

    Raises:
        DataError: a file is no ``results.json`` of one of the studies.
    """
    kept = {name: folder / f"{name}.json" for name in STUDIES}
    contents = {name: _read(path) if path.is_file() else {} for name, path in kept.items()}
    for path in paths:
        more = _read(path)
        if more.get("study") not in STUDIES:
            raise DataError(f"{path} is no results.json of {', '.join(STUDIES)}")
        contents[more["study"]] = merged(contents[more["study"]], more)
    for name, content in contents.items():
        if not content:
            continue
        text = text_of(name, content)  # before any write
        data = json.dumps(content, indent=0, ensure_ascii=False) + "\n"
        replace_file(kept[name], data.encode(), mode=0o644)
        replace_file(folder / f"{name}.md", text.encode(), mode=0o644)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is not there; name a results.json") from None
    except ValueError:
        raise DataError(f"{path} is no JSON") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no results")
    return content


if __name__ == "__main__":
    try:
        write([Path(word) for word in sys.argv[1:]])
    except HDPFLError as error:
        sys.exit(f"error: {error}")
