"""Tables of FLamby's study: true ε, and accuracies by ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hdpfl_flower.data.datasets import HOSPITALS
from studies.flamby.scores import TestScores
from studies.flamby.spent import Spent
from studies.framework.study import Table

NONE = "none"
"""Column without noise."""
Value = TestScores | float | None


@dataclass(frozen=True)
class AccuracyRow:
    """Row of the accuracies.

    Attributes:
        label: its name.
        cells: ε → on FLamby's split, and on the other splits.
    """

    label: str
    cells: Mapping[str, tuple[Value, Value]]


def spent_table(nominal: str, costs: Sequence[Spent]) -> Table:
    """Return the cost of a nominal ε's noise by hospital, rounded up."""
    head = ("", "train", "steps accounted", "taken", "passes", "σ", "ε if Poisson", "ε bound")
    rows = tuple(
        (
            hospital, str(one.records), str(one.accounted), str(one.taken), str(one.passes),
            f"{one.sigma:.3f}", _up(one.poisson, 2), _up(one.bound, 1),
        )
        for hospital, one in zip(HOSPITALS, costs, strict=True)
    )  # fmt: skip
    return Table(f"nominal ε = {nominal}, δ = 1e-4: what it is at each hospital", head, rows)


def accuracy_table(rows: Sequence[AccuracyRow], epsilons: Sequence[str]) -> Table:
    """Return accuracies (% ± sd) and AUROC; other splits in brackets."""
    shown = (*epsilons, NONE)
    at = "1" if "1" in epsilons else epsilons[-1]
    head = ("", *(f"ε {e}" if e != NONE else NONE for e in shown), f"AUROC at ε {at}")
    lines = tuple(
        (row.label, *(_cell(row.cells.get(e)) for e in shown), _area(row.cells.get(at)))
        for row in rows
    )
    return Table(
        "accuracy, %, mean over hospitals ± sd; in brackets over other splits", head, lines
    )


def numbers_of(rows: Sequence[AccuracyRow], costs: Mapping[str, Sequence[Spent]]) -> dict[str, Any]:
    """Return all numbers for ``results.json``."""
    return {
        "spent": {
            nominal: {name: asdict(one) for name, one in zip(HOSPITALS, found, strict=True)}
            for nominal, found in costs.items()
        },
        "rows": [
            {
                "label": row.label,
                "cells": {
                    epsilon: {"split": _known(own), "others": _known(others)}
                    for epsilon, (own, others) in row.cells.items()
                },
            }
            for row in rows
        ],
    }


def above(row: AccuracyRow, constant: AccuracyRow, epsilon: str) -> tuple[float, float]:
    """Return a row's lead over the constant ± deviation, points or NaN."""
    value, base = row.cells[epsilon][0], _mean(constant.cells[epsilon][0])
    spread = value.spread if isinstance(value, TestScores) else math.nan
    return 100 * (_mean(value) - base), 100 * spread


def _mean(value: Value) -> float:
    if isinstance(value, TestScores):
        return value.accuracy
    return math.nan if value is None else value


def _cell(cell: tuple[Value, Value] | None) -> str:
    if cell is None:
        return "–"
    own, others = map(_text, cell)
    return own + (f" ({others})" if others else "")


def _text(value: Value) -> str:
    if isinstance(value, TestScores):
        spread = "" if math.isnan(value.spread) else f" ± {100 * value.spread:.1f}"
        return f"{100 * value.accuracy:.1f}{spread}"
    return "" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def _area(cell: tuple[Value, Value] | None) -> str:
    value = cell[0] if cell else None
    if not isinstance(value, TestScores) or math.isnan(value.auroc):
        return "–"
    return f"{value.auroc:.3f}"


def _known(value: Value) -> Any:
    if not isinstance(value, TestScores):
        return None if value is None or math.isnan(value) else value
    return {
        "accuracy": value.accuracies.tolist(),
        "auroc": [None if math.isnan(area) else area for area in value.aurocs.tolist()],
    }


def _up(value: float, digits: int) -> str:
    """Return the ε ``value`` rounded up."""
    return f"{math.ceil(value * 10**digits - 1e-9) / 10**digits:.{digits}f}"
