"""The tables of the natural federations: a board for each ε, and the regret of each rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.framework.study import Table
from studies.natural.scores import Score
from studies.which_rule.regret import Difference, difference

if TYPE_CHECKING:
    from studies.natural.study import Place

THOUSANDTHS = 1000.0
"""Differences of losses are shown in thousandths of a nat."""


@dataclass(frozen=True)
class Cell:
    """A rule on a federation at an ε.

    Attributes:
        rate: learning rate that the search chose.
        scores: of the reported runs, a seed each.
        alone: share of the sites that are better off alone, a seed each; empty without ``local``.
    """

    rate: float
    scores: tuple[Score, ...]
    alone: tuple[float, ...]

    @property
    def losses(self) -> list[float]:
        """Of the reported runs, in thousandths of a nat."""
        return [THOUSANDTHS * score.loss for score in self.scores]


def regret(cells: Mapping[Place, Cell], rule: str) -> dict[Place, Difference]:
    """Return the loss of each cell less that of ``rule`` in the same column, seed by seed."""
    of_rule = {place.column: cell for place, cell in cells.items() if place.rule == rule}
    return {
        place: difference(cell.losses, of_rule[place.column].losses)
        for place, cell in cells.items()
        if place.column in of_rule and place.rule != rule
    }


def board(
    cells: Mapping[Place, Cell], constants: Mapping[str, Score], fedavg: str
) -> tuple[Table, ...]:
    """Return the regret over all columns, then a table for each column, the best loss first."""
    columns = dict.fromkeys(place.column for place in cells)
    tables = [_regret_table(cells, fedavg)]
    for column in columns:
        here = {place: cell for place, cell in cells.items() if place.column == column}
        gaps = regret(here, fedavg)
        ordered = sorted(here, key=lambda place: float(np.mean(here[place].losses)))
        name = next(iter(here)).federation
        rows = [_row(place.rule, here[place], gaps.get(place)) for place in ordered]
        rows.append(_row("constant", Cell(math.nan, (constants[name],), ()), None))
        head = ("", "loss", "accuracy, %", "AUROC", "worst", "alone, %", f"− {fedavg}", "rate")
        tables.append(Table(f"{column}: nats; − {fedavg} in thousandths", head, tuple(rows)))
    return tuple(tables)


def numbers(cells: Mapping[Place, Cell], constants: Mapping[str, Score]) -> dict[str, Any]:
    """Return every run's numbers for ``results.json``."""
    return {
        "cells": [
            {
                "federation": place.federation,
                "epsilon": place.epsilon,
                "rule": place.rule,
                "learning-rate": cell.rate,
                "runs": [_known(score) for score in cell.scores],
                "better-off-alone": list(cell.alone),
            }
            for place, cell in cells.items()
        ],
        "constant": {name: _known(score) for name, score in constants.items()},
    }


def _regret_table(cells: Mapping[Place, Cell], fedavg: str) -> Table:
    """Return each rule's furthest loss behind FedAvg and behind the best federated rule."""
    rows = []
    federated = {p: c for p, c in cells.items() if p.rule not in ("local", "pooled")}
    best = {
        column: min(
            (p for p in federated if p.column == column),
            key=lambda p: float(np.mean(federated[p].losses)),
        )
        for column in dict.fromkeys(place.column for place in federated)
    }
    for rule in dict.fromkeys(place.rule for place in federated):
        gaps = {p: d for p, d in regret(federated, fedavg).items() if p.rule == rule}
        behind = {
            p: difference(c.losses, federated[best[p.column]].losses)
            for p, c in federated.items()
            if p.rule == rule
        }
        rows.append((rule, _worst(gaps), _worst(behind)))
    head = ("", f"furthest behind {fedavg}", "furthest behind the best")
    return Table("losses, in thousandths of a nat, ± standard error over seeds", head, tuple(rows))


def _worst(gaps: Mapping[Place, Difference]) -> str:
    if not gaps:
        return "–"
    place = max(gaps, key=lambda one: gaps[one].mean)
    return f"{_text(gaps[place])} ({place.column})"


def _row(rule: str, cell: Cell, gap: Difference | None) -> tuple[str, ...]:
    def mean(field: str, scale: float, digits: int) -> str:
        value = float(np.mean([getattr(score, field) for score in cell.scores]))
        return "–" if math.isnan(value) else f"{scale * value:.{digits}f}"

    return (
        rule,
        mean("loss", 1, 3),
        mean("accuracy", 100, 1),
        mean("auroc", 1, 3),
        mean("worst", 1, 3),
        f"{100 * float(np.mean(cell.alone)):.0f}" if cell.alone else "–",
        _text(gap) if gap else "–",
        "–" if math.isnan(cell.rate) else f"{cell.rate:g}",
    )


def _text(gap: Difference) -> str:
    error = "" if math.isnan(gap.error) else f" ± {gap.error:.0f}"
    return ("" if gap.is_established else "≈ ") + f"{gap.mean:+.0f}{error}"


def _known(score: Score) -> dict[str, float | None]:
    return {key: None if math.isnan(value) else value for key, value in asdict(score).items()}
