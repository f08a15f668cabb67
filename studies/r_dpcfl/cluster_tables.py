"""Tables and pictures of cluster recovery."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from studies.framework.study import Table
from studies.r_dpcfl.first_updates import MAPS, MapResult

Places = Mapping[tuple[str, int], Sequence[MapResult]]
"""(column, seed) → results of the maps."""

EDGES = (0.0, 1.0, 2.0, 5.0, 10.0, math.inf)
"""Edges of MSS classes; the paper trusts clusters above 2."""


def finding_tables(results: Places) -> tuple[Table, ...]:
    """Return seed counts with all groups, and the minority, by column, map."""
    columns = list(dict.fromkeys(column for column, _ in results))
    return tuple(
        Table(
            f"First rounds that found {what}, out of {_seeds(results)}",
            ("", *columns),
            tuple(
                (
                    row_name(name, given),
                    *(
                        str(sum(getattr(f, attribute) for f in _of(results, c, name, given)))
                        for c in columns
                    ),
                )
                for name, given in _rows()
            ),
        )
        for what, attribute in (("all four groups", "all"), ("the minority", "minority"))
    )


def mss_table(results: Places) -> Table:
    """Return how often clusters are right and trusted, by MSS."""
    bins = list(pairwise(EDGES))
    head = ["", *(f"≤ {high:g}" if high < math.inf else f"> {low:g}" for low, high in bins)]
    rows = []
    for name, given in _rows():
        ones = [
            f for events in results.values() for f in events if (f.map, f.given) == (name, given)
        ]
        inside = [[f for f in ones if low < f.mss <= high] for low, high in bins]
        cells = (f"{sum(f.all for f in some)} of {len(some)}" if some else "–" for some in inside)
        trusted = [f for f in ones if f.separated]
        rows.append(
            (row_name(name, given), *cells, f"{sum(f.all for f in trusted)} of {len(trusted)}")
        )
    return Table(
        "First rounds with all groups right, by MSS (last column: those that the map calls "
        "separated)",
        (*head, "separated"),
        tuple(rows),
    )


def numbers_of(results: Places) -> list[dict[str, Any]]:
    """Return all findings without their pictures."""
    return [
        {
            "column": column,
            "seed": seed,
            "map": result.map,
            "clusters-given": result.given,
            "all": result.all,
            "minority": result.minority,
            "mss": result.mss,
            "separated": result.separated,
            "sizes": np.bincount(result.assignment).tolist(),
        }
        for (column, seed), ones in results.items()
        for result in ones
    ]


def row_name(name: str, given: bool) -> str:
    """Return the head of a row."""
    return f"{name}, M {'given' if given else 'found'}"


def _rows() -> list[tuple[str, bool]]:
    return [(name, given) for name in MAPS for given in (True, False)]


def _of(results: Places, column: str, name: str, given: bool) -> list[MapResult]:
    return [
        f
        for (c, _), ones in results.items()
        if c == column
        for f in ones
        if (f.map, f.given) == (name, given)
    ]


def _seeds(results: Places) -> int:
    return len({seed for _, seed in results})
