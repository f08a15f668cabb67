"""Repeated rows, likely ids, and placeholders of ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import Texts

LEAST_ROWS = 20
"""Rows from which a table is looked at."""
_PLACEHOLDER, _OFTEN = 0.1, 5
"""Share of rows, and multiple of the next id's rows, from which an id is doubted."""
_CONSTANT = 0.9
_SHOWN = 5
Rows = npt.NDArray[np.int64]


def about_repeats(columns: Mapping[str, Texts], features: Sequence[str]) -> Iterator[str]:
    """Yield warnings about a table without an id.

    Args:
        columns: all of the table.
        features: those that the run uses.
    """
    rows = {name: _numbered(texts) for name, texts in columns.items()}
    count = len(next(iter(rows.values()))) if rows else 0
    if count < LEAST_ROWS:
        return
    running = [name for name, of in rows.items() if len(np.unique(of)) == count]
    rest = {name: of for name, of in rows.items() if name not in running}
    twice = 0
    if rest:
        _, sizes = np.unique(np.stack([*rest.values()]), axis=1, return_counts=True)
        twice = int((sizes - 1).sum())
        if twice > 3 + 10 * _expected(rest, count):
            but = f", except for the running number in '{running[0]}'" if running else ""
            yield (
                f"warning: {twice} of {count} rows occur more than once{but}: was the table "
                "exported twice? Without 'data.id' a person with two rows has twice the ε; "
                "remove the copies"
            )
            return
    likely = [name for name in rest if _is_id(name, rest, count)]
    if likely:
        # The finest: within a person's rows a birthday is constant, too.
        name = max(likely, key=lambda each: (each not in features, len(np.unique(rest[each]))))
        different = len(np.unique(rest[name]))
        yield (
            f"warning: '{name}' looks like the id of a person: {different} values in {count} "
            "rows, and other columns are the same in all rows of one. The run has no id, so ε "
            f"protects a row, and a person costs ε once for each row: set 'data.id' = \"{name}\", "
            "and ask the coordinator for the same 'id' in the schema"
        )


def about_placeholder(ids: Sequence[bytes], key: str) -> Iterator[str]:
    """Yield a warning about an id that stands for persons without one.

    Args:
        ids: of the rows that have one.
        key: of the profile that names marks of a missing id.
    """
    if len(ids) < LEAST_ROWS:
        return
    names, counts = np.unique(np.array(ids, dtype=object), return_counts=True)
    first, *others = np.sort(counts)[::-1][:2].tolist()
    often = first >= _PLACEHOLDER * len(ids) and first >= _OFTEN * (others[0] if others else 1)
    if len(names) > 2 and (often or (first >= len(ids) / 3 and first > 2)):
        name = names[counts.argmax()].decode(errors="replace")[:40]
        yield (
            f"warning: one id, '{name}', has {first} of {len(ids)} rows: is it a placeholder for "
            f"persons without an id? Then name it in '{key}', because its rows would count as "
            "those of one person"
        )


def _numbered(texts: Texts) -> Rows:
    """Return a number per distinct text, 0 for empty."""
    different = dict.fromkeys([b"", *texts.values])
    numbers = {text: number for number, text in enumerate(different)}
    places = np.array([numbers[text] for text in texts.values], dtype=np.int64)
    return places[texts.rows] if len(places) else texts.rows


def _expected(rows: Mapping[str, Rows], count: int) -> float:
    """Return the expected copies under independence, rounded up."""
    same = np.prod([float(((np.bincount(of) / count) ** 2).sum()) for of in rows.values()])
    return float(np.ceil(count**2 / 2 * same))


def _is_id(name: str, rows: Mapping[str, Rows], count: int) -> bool:
    """Return whether other columns are constant within its groups.

    A column of measurements has repeated values, too, but other persons behind each.
    """
    if (rows[name] == 0).mean() > 1 - _CONSTANT:
        return False
    _, of, sizes = np.unique(rows[name], return_inverse=True, return_counts=True)
    groups, repeated = len(sizes), int((sizes > 1).sum())
    if not 10 <= groups <= 0.7 * count or repeated < 0.5 * groups:
        return False
    constant = 0
    for other, values in rows.items():
        held = values > 0  # rows of one visit may lack what stands in those of another
        if other == name or len(np.unique(values[held])) < 2:
            continue
        pairs = np.unique(np.stack([of[held], values[held]]), axis=1).shape[1]
        # Of pairs of a group and a value each group has one, if it is constant.
        if len(np.unique(of[held])) / pairs < _CONSTANT:
            continue
        shuffled = np.random.default_rng(0).permutation(values[held])
        by_chance = np.unique(np.stack([of[held], shuffled]), axis=1).shape[1]
        constant += by_chance > 1.2 * pairs
    return constant >= 2
