"""Made-up table of a public schema, for rehearsals (ε = 0).

Types, bounds, categories and marks of missing values come from the schema; no file of records is an
argument here.
"""

from __future__ import annotations

import csv
import io

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.schema import Column, NumberColumn, Schema

MISSING = 0.05
"""Share of the features' cells that hold a mark of a missing value."""
_CENSORED = 0.5


def mock_table(schema: Schema, rows: int, seed: int = 0) -> str:
    """Return a CSV with a header and ``rows`` records, each of its own unit.

    Numbers are uniform within their bounds, values of categories equally frequent. The label
    follows one made-up rule a schema, so that tables of several seeds have something to learn.

    Guarantees:
        A function of the arguments alone: no file is opened.
    """
    draw, rule = np.random.default_rng([seed, 1]), np.random.default_rng(0)
    columns: dict[str, list[str]] = {}
    if schema.id:
        columns[schema.id] = [f"made-up-{row}" for row in range(1, rows + 1)]
    score = draw.normal(size=rows)
    for column in schema.columns:
        cells, feature = _cells(column, rows, draw, rule)
        score += rule.normal() * feature
        marks = (*column.missing, *schema.missing)
        missing = draw.random(rows) < (MISSING if marks else 0)
        columns[column.name] = [
            str(draw.choice(marks)) if gone else cell
            for cell, gone in zip(cells, missing, strict=True)
        ]
    columns |= _labels(schema, score, draw)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def _cells(
    column: Column, rows: int, draw: np.random.Generator, rule: np.random.Generator
) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return cells, and their input to the label's rule, in [-1, 1]."""
    if isinstance(column, NumberColumn):
        share = draw.random(rows)
        return _between(*column.bounds, share), 2 * share - 1
    index = draw.integers(len(column.categories), size=rows)
    effect = rule.uniform(-1, 1, len(column.categories))
    return [str(draw.choice(column.categories[category])) for category in index], effect[index]


def _between(low: float, high: float, share: npt.NDArray[np.float64]) -> list[str]:
    """Return numbers within bounds: whole ones where a hundred of them fit."""
    # Halves: the difference of bounds near 1e308 overflows.
    values = np.clip(2 * (low / 2 * (1 - share) + high / 2 * share), low, high)
    whole = low.is_integer() and high.is_integer() and 10 <= high / 2 - low / 2 < 1e9
    return [f"{value:.0f}" if whole else repr(float(value)) for value in values]


def _labels(
    schema: Schema, score: npt.NDArray[np.float64], draw: np.random.Generator
) -> dict[str, list[str]]:
    """Return the columns of the outcome: equal parts of the scores' order."""
    label, share = schema.label, (score.argsort().argsort() + 0.5) / max(len(score), 1)
    if label.event is not None:
        event = draw.random(len(score)) < _CENSORED
        return {
            # A mock shall lose no record, and one censored in the first half interval is lost.
            label.column: _between(label.edges[0], label.edges[-1] * 1.2, 1 - share),
            label.event.column: [
                str(draw.choice(label.event.groups[int(occurred)])) for occurred in event
            ],
        }
    if label.bounds is not None:
        return {label.column: _between(*label.bounds, share)}
    classes = (share * len(label.classes)).astype(int)
    return {label.column: [str(draw.choice(label.classes[number])) for number in classes]}
