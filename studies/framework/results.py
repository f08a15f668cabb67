"""Table numbers from the rounds of finished runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.monitoring.journal import Event
from hdpfl_tools.measures.paired import paired

LAST = 5
"""Last rounds whose mean accuracy is a run's result."""

PERSONAL = "personal-"
"""Prefix of personal models' metrics, tested once after the last round."""

Place = tuple[str, str, str]
"""Cell: block, row, column."""


@dataclass(frozen=True)
class Value:
    """Mean results of a cell's runs.

    Attributes:
        mean: over the seeds, of the mean accuracy of the last rounds, in percent.
        sd: standard deviation over the seeds (n − 1), in percent; NaN for one seed.
        curves: accuracy after each round, shape ``(seeds, rounds)``, NaN after the end of a run.
        rates: learning rate → mean, for all tried rates.
        rate: the chosen rate.
        finals: each seed's result, in percent, in the order of the seeds.
    """

    mean: float
    sd: float
    curves: npt.NDArray[np.float64]
    rates: Mapping[float, float]
    rate: float
    finals: tuple[float, ...] = ()

    @property
    def at_edge(self) -> bool:
        """Whether the best of several rates is at the grid's edge."""
        return len(self.rates) > 1 and self.rate in (min(self.rates), max(self.rates))


def value_of(runs: Sequence[Sequence[Event]], metric: str = "accuracy") -> Value:
    """Return one rate's results over seeds; personal models: the last test."""
    accuracy = [[float(e["metrics"].get(metric, np.nan)) for e in events] for events in runs]
    last = 1 if metric.startswith(PERSONAL) else LAST
    # In per cent, over each run's own last rounds.
    finals = [100 * float(np.mean(a[-last:])) for a in accuracy]
    curves = np.full((len(runs), max(map(len, accuracy))), np.nan)
    for row, line in zip(curves, accuracy, strict=True):
        row[: len(line)] = line
    # The sample's deviation, n − 1: undefined for one seed.
    spread = float(np.std(finals, ddof=1)) if len(finals) > 1 else math.nan
    return Value(float(np.mean(finals)), spread, curves, {}, math.nan, tuple(finals))


def best_rate(values: Mapping[float, Value]) -> Value:
    """Return the value of the best learning rate, smallest on ties."""
    means = {rate: values[rate].mean for rate in sorted(values)}
    finite = {rate: mean for rate, mean in means.items() if not math.isnan(mean)} or means
    best = max(finite, key=lambda rate: finite[rate])
    return replace(values[best], rates=means, rate=best)


def grid_values(
    cells: Mapping[Place, Mapping[float, Sequence[Sequence[Event]]]],
    metrics: Mapping[str, str],
    personal: Collection[str],
) -> dict[Place, Value]:
    """Return the cells' values, block by block.

    Args:
        cells: (noise, row, column) → learning rate → runs.
        metrics: a block's name beside its noise → its metric; learning rates
            are chosen by the first.
        personal: rows in which personal models count, if they were tested.
    """
    blocks: dict[tuple[str, str], dict[Place, Value]] = {}
    for (noise, row, column), rates in cells.items():
        tested = {name for runs in rates.values() for run in runs for name in run[-1]["metrics"]}
        prefix = PERSONAL if row in personal and f"{PERSONAL}accuracy" in tested else ""
        chosen = None
        for name, metric in metrics.items():
            values = {rate: value_of(events, prefix + metric) for rate, events in rates.items()}
            # The first metric chooses the rate: all numbers of a cell come from the same runs.
            chosen = chosen or best_rate(values)
            value = replace(values[chosen.rate], rates=chosen.rates, rate=chosen.rate)
            block = ", ".join(filter(None, (name, noise)))
            blocks.setdefault((noise, name), {})[block, row, column] = value
    return {place: value for values in blocks.values() for place, value in values.items()}


def cell_text(value: Value, paper: float | None) -> str:
    """Return a cell's text: mean ± sd, ``*`` at grid edge, (paper)."""
    text = f"{value.mean:.1f}"
    if not math.isnan(value.sd):
        text += f" ± {value.sd:.1f}"
    text += "*" if value.at_edge else ""
    return text if paper is None else f"{text} ({paper:g})"


def grid_tables(
    values: Mapping[Place, Value],
    paper: Mapping[tuple[str, str], float],
    unit: str,
    against: str = "",
) -> tuple[list[tuple[Any, ...]], dict[str, Any], list[str]]:
    """Return a grid's tables (title, head, rows), numbers and notes.

    Args:
        values: of the cells.
        paper: (row, column) → the paper's number.
        unit: of the values.
        against: the row that paired differences are to; empty: the first.
    """
    rows = list(dict.fromkeys(row for _, row, _ in values))
    columns = list(dict.fromkeys(column for _, _, column in values))
    tables: list[tuple[Any, ...]] = []
    for block in dict.fromkeys(block for block, _, _ in values):
        cells = {(r, c): values[block, r, c] for b, r, c in values if b == block}
        text = {place: cell_text(v, paper.get(place)) for place, v in cells.items()}
        tables.append((f"{unit}; {block}", ("", *columns), _rows(rows, columns, text)))
        if any(len(v.rates) > 1 for v in cells.values()):
            rates = {place: f"{v.rate:g}" for place, v in cells.items()}
            head = (f"Chosen learning rate; {block}", ("", *columns), _rows(rows, columns, rates))
            tables.append(head)
        tables += _differences(cells, rows, columns, against or rows[0], block)
    return (
        tables,
        {"cells": [_numbers(p, v, paper) for p, v in values.items()]},
        _notes(values, paper),
    )


def _differences(
    cells: Mapping[tuple[str, str], Value],
    rows: Sequence[str],
    columns: Sequence[str],
    against: str,
    block: str,
) -> Iterator[tuple[Any, ...]]:
    """Yield the table of paired differences to a row; none of one seed or one row."""
    text = {}
    for column in columns:
        results = {
            r: dict(enumerate(cells[r, column].finals)) for r in rows if (r, column) in cells
        }
        if against in results and len(results[against]) > 1:
            for row, other in paired(results, against, more_is_better=True).items():
                wins = f"won {other.wins} of {other.seeds}"
                text[row, column] = f"{other.mean:+.1f} ± {other.margin:.1f}, {wins}"
    if text:
        title = (
            f"Difference from '{against}' on the same seeds, in points, ± half of its interval "
            f"of 95 % by Student's t; {block}"
        )
        yield title, ("", *columns), _rows([r for r in rows if r != against], columns, text)


def _rows(
    rows: Sequence[str], columns: Sequence[str], text: Mapping[tuple[str, str], str]
) -> tuple[tuple[str, ...], ...]:
    return tuple((r, *(text.get((r, c), "–") for c in columns)) for r in rows)


def _numbers(place: Place, value: Value, paper: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    block, row, column = place
    return {
        "noise": block,
        "row": row,
        "column": column,
        "accuracy": value.mean,
        "sd": None if math.isnan(value.sd) else value.sd,
        "seeds": len(value.curves),
        "learning-rate": value.rate,
        "learning-rates": {f"{rate:g}": mean for rate, mean in value.rates.items()},
        "at-edge": value.at_edge,
        "paper": paper.get((row, column)),
        "curve": [
            float(x[~np.isnan(x)].mean()) if not np.isnan(x).all() else None for x in value.curves.T
        ],
    }


def _notes(values: Mapping[Place, Value], paper: Mapping[tuple[str, str], float]) -> list[str]:
    notes = []
    if any((row, column) in paper for _, row, column in values):
        notes.append("The number in brackets is the paper's.")
    if any(value.at_edge for value in values.values()):
        notes.append(
            "* The best learning rate is at the edge of the grid; a wider grid may do better."
        )
    longest = max(value.curves.shape[1] for value in values.values())
    short = [
        f"{r} at {c}"
        for (_, r, c), v in values.items()
        if np.isnan(v.curves[:, -1]).any() or v.curves.shape[1] < longest
    ]
    if short:
        notes.append(
            "These runs ended before their last round (no quorum, or budgets used up) and are "
            f"shown with the accuracy of their last {LAST} rounds: {', '.join(short)}."
        )
    return notes
