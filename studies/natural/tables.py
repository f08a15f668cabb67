"""Tables of natural federations: a board per ε, and regrets.

They depend only on ``results.json``: change a number of the page there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from studies.framework.study import Table
from studies.natural.federations.catalog import NATURAL
from studies.natural.scores import NONE, Score
from studies.which_rule.regret import Difference, difference

THOUSANDTHS = 1000.0
"""Scale of loss differences: thousandths of a nat."""
ALONE, POOLED, FEDAVG, CONSTANT = "local", "pooled", "fedavg", "constant"
HEAD = (
    "", "loss", "− constant", "accuracy, %", "AUROC", "slope", "worst", "alone, %", "− fedavg",
    "rate",
)  # fmt: skip


@dataclass(frozen=True)
class NaturalPlace:
    """Cell: federation, ε label, strategy."""

    federation: str
    epsilon: str
    rule: str

    @property
    def column(self) -> str:
        """Label for ``--columns``."""
        return f"{self.federation} ε {self.epsilon}"


@dataclass(frozen=True)
class Cell:
    """Strategy on a federation at an ε.

    Attributes:
        rate: learning rate that the search chose.
        scores: of the reported runs, a seed each.
        alone: share of the sites that are better off alone, one per seed; empty without ``local``.
        at_edge: whether the rate is the least or the greatest of the grid.
        of_sites: number of sites of the federation, including those that take no part.
    """

    rate: float
    scores: tuple[Score, ...]
    alone: tuple[float, ...]
    at_edge: bool = False
    of_sites: int = 0

    @property
    def losses(self) -> list[float]:
        """Losses of the reported runs, in thousandths of a nat."""
        return [THOUSANDTHS * score.loss for score in self.scores]

    def mean(self, field: str) -> float:
        """Return the seed mean of a score's number; NaN if any lacks it."""
        return float(np.mean([getattr(score, field) for score in self.scores]))

    @property
    def is_better(self) -> bool:
        """Whether its mean loss beats the constant's beyond chance over sites."""
        return self.mean("gain") > self.mean("gain_reach")


def regret(cells: Mapping[NaturalPlace, Cell], rule: str) -> dict[NaturalPlace, Difference]:
    """Return each cell's loss less that of ``rule``, by column and seed."""
    of_rule = {place.column: cell for place, cell in cells.items() if place.rule == rule}
    return {
        place: difference(cell.losses, of_rule[place.column].losses)
        for place, cell in cells.items()
        if place.column in of_rule and place.rule != rule
    }


def board(cells: Mapping[NaturalPlace, Cell], constants: Mapping[str, Score]) -> tuple[Table, ...]:
    """Return the regret over all columns, then each column's ranking."""
    columns = dict.fromkeys(place.column for place in cells)
    tables = [_regret_table(cells)]
    for column in columns:
        here = {place: cell for place, cell in cells.items() if place.column == column}
        gaps = regret(here, FEDAVG)
        ordered = sorted(here, key=lambda place: float(np.mean(here[place].losses)))
        name = next(iter(here)).federation
        rows = [_row(place.rule, here[place], gaps.get(place)) for place in ordered]
        rows.append(_row(CONSTANT, Cell(NONE, (constants[name],), ()), None))
        # Survival has no classes, so no accuracy.
        is_survival = math.isnan(constants[name].accuracy)
        head = tuple("concordance" if is_survival and w == "AUROC" else w for w in HEAD)
        tables.append(Table(f"{column}: {_title(name, here)}", head, tuple(rows)))
    return tuple(tables)


def _title(name: str, here: Mapping[NaturalPlace, Cell]) -> str:
    """Return the participation, and for controls whether they show signal."""
    part = [cell for place, cell in here.items() if place.rule != POOLED]
    sites, of_sites = min(cell.scores[0].sites for cell in part), part[0].of_sites
    words = [f"{of_sites} sites, of which {sites} take part and have records for the test"]
    if sites == of_sites:
        words = [f"{of_sites} sites"]
    if NATURAL[name].control:
        better = [place.rule for place, cell in here.items() if cell.is_better]
        ranked = [place.rule for place, cell in here.items() if cell.mean("ranking_low") > 0.5]
        words.append(
            f"a negative control. Loss below the constant's: {', '.join(better) or 'none'}. AUROC "
            f"above .5: {', '.join(ranked) or 'none'}"
        )
    return "; ".join(words)


def numbers(cells: Mapping[NaturalPlace, Cell], constants: Mapping[str, Score]) -> dict[str, Any]:
    """Return every run's numbers for ``results.json``."""
    return {
        "cells": [
            {
                "federation": place.federation,
                "epsilon": place.epsilon,
                "rule": place.rule,
                "learning-rate": cell.rate,
                "at-edge": cell.at_edge,
                "sites": cell.of_sites,
                "runs": [_known(score) for score in cell.scores],
                "better-off-alone": list(cell.alone),
            }
            for place, cell in cells.items()
        ],
        CONSTANT: {name: _known(score) for name, score in constants.items()},
    }


def cells_of(content: Mapping[str, Any]) -> tuple[dict[NaturalPlace, Cell], dict[str, Score]]:
    """Return the cells and constants written by :func:`numbers`."""
    cells = {
        NaturalPlace(one["federation"], one["epsilon"], one["rule"]): Cell(
            one["learning-rate"],
            tuple(map(_score, one["runs"])),
            tuple(one["better-off-alone"]),
            one["at-edge"],
            one["sites"],
        )
        for one in content["cells"]
    }
    return cells, {name: _score(one) for name, one in content[CONSTANT].items()}


def _regret_table(cells: Mapping[NaturalPlace, Cell]) -> Table:
    """Return each strategy's largest loss behind FedAvg and the best."""
    rows = []
    federated = {p: c for p, c in cells.items() if p.rule not in (ALONE, POOLED)}
    best = {
        column: min(
            (p for p in federated if p.column == column),
            key=lambda p: float(np.mean(federated[p].losses)),
        )
        for column in dict.fromkeys(place.column for place in federated)
    }
    for rule in dict.fromkeys(place.rule for place in federated):
        gaps = {p: d for p, d in regret(federated, FEDAVG).items() if p.rule == rule}
        behind = {
            p: difference(c.losses, federated[best[p.column]].losses)
            for p, c in federated.items()
            if p.rule == rule
        }
        rows.append((rule, str(len(behind)), _worst(gaps), _worst(behind)))
    head = ("", "columns", f"furthest behind {FEDAVG}", "furthest behind the best")
    return Table("losses, in thousandths of a nat, ± standard error over seeds", head, tuple(rows))


def _worst(gaps: Mapping[NaturalPlace, Difference]) -> str:
    if not gaps:
        return "–"
    place = max(gaps, key=lambda one: gaps[one].mean)
    return f"{_text(gaps[place])} ({place.column})"


def _row(rule: str, cell: Cell, gap: Difference | None) -> tuple[str, ...]:
    ends = [cell.mean(f"ranking_{end}") for end in ("low", "high")]
    within = "" if any(map(math.isnan, ends)) else f" ({ends[0]:.3f} to {ends[1]:.3f})"
    return (
        rule,
        _number(cell.mean("loss"), 3),
        _gain(cell),
        _number(100 * cell.mean("accuracy"), 1),
        _number(cell.mean("ranking"), 3) + within,
        _number(cell.mean("slope"), 2),
        _number(cell.mean("worst"), 3),
        f"{100 * float(np.mean(cell.alone)):.0f}" if cell.alone else "–",
        _text(gap) if gap else "–",
        "–" if math.isnan(cell.rate) else f"{cell.rate:g}{'*' * cell.at_edge}",
    )


def _gain(cell: Cell) -> str:
    gain, reach = THOUSANDTHS * cell.mean("gain"), THOUSANDTHS * cell.mean("gain_reach")
    if math.isnan(gain):
        return "–"
    if math.isnan(reach):
        return f"{-gain:+.0f}"
    return ("" if abs(gain) > reach else "≈ ") + f"{-gain:+.0f} ± {reach:.0f}"


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _text(gap: Difference) -> str:
    error = "" if math.isnan(gap.error) else f" ± {gap.error:.0f}"
    return ("" if gap.is_established else "≈ ") + f"{gap.mean:+.0f}{error}"


def _known(score: Score) -> dict[str, float | None]:
    """Return a score's numbers with six digits; tables show four."""
    return {
        key: None if math.isnan(value) else float(f"{value:.6g}")
        for key, value in asdict(score).items()
    }


def _score(content: Mapping[str, float | None]) -> Score:
    known = {key: NONE if value is None else value for key, value in content.items()}
    return Score(**{**known, "sites": int(known["sites"])})  # type: ignore[arg-type]


def columns_of(cells: Iterable[NaturalPlace]) -> list[str]:
    """Return the columns in their order."""
    return list(dict.fromkeys(place.column for place in cells))
