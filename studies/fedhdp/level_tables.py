"""Tables of studies of privacy levels, after FedHDP's Table 1.

With the search for the server's rate, the constant predictor, and the rows' differences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.errors import DataError
from hdpfl_tools.simulation.in_process.comparison import RunJob
from studies.framework.results import Value
from studies.framework.study import Findings, Table

Place = tuple[str, str]
"""(column, row)."""

Levels = Mapping[tuple[str, str], tuple[float, float]]
"""(level, model) → mean and variance of accuracy over clients, as fractions."""

PRIVATE, OPTED_OUT = "private", "opted out"
GLOBAL, PERSONAL, CONSTANT = "global", "personal", "constant"

CELLS = {
    "global: private": (PRIVATE, GLOBAL),
    "global: opted out": (OPTED_OUT, GLOBAL),
    "personal: private": (PRIVATE, PERSONAL),
    "personal: opted out": (OPTED_OUT, PERSONAL),
}
"""Columns with mean and variance over clients, in the paper's order."""

PAPER_ORDER = ("all", *CELLS)
"""Entries of a paper's row: five accuracies in percent, NaN if none."""


@dataclass(frozen=True)
class LevelResult:
    """Results of a row.

    Attributes:
        searched: the search's value at the rate chosen, and the means at all of them.
        reported: accuracy of the global model over the reported seeds.
        levels: by level and model, a mapping a seed.
    """

    searched: Value
    reported: Value
    levels: Sequence[Levels]

    def mean(self, level: str, model: str) -> tuple[float, float, float]:
        """Return mean accuracy, its sd over seeds (percent), and mean variance.

        The variance is over the clients of the level, of the accuracy as a fraction, times 100, as
        in the paper's numbers. NaN without that model.
        """
        pairs = [of_seed[level, model] for of_seed in self.levels if (level, model) in of_seed]
        if not pairs:
            return math.nan, math.nan, math.nan
        means, variances = 100 * np.array(pairs).T
        spread = float(np.std(means, ddof=1)) if len(means) > 1 else math.nan
        return float(means.mean()), spread, float(variances.mean())


def read_levels(job: RunJob) -> Levels:
    """Return the accuracies of a finished run's levels and models.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = Path(job.config.server.runs_dir) / job.terms.run_id / "personal.json"
    try:
        return {
            (row["level"], row["model"]): (float(row["accuracy"]), float(row["variance"]))
            for row in json.loads(path.read_text())
        }
    except (OSError, ValueError, LookupError, TypeError):
        raise DataError(
            f"{path} is missing or damaged; remove its folder to run it again"
        ) from None


def findings(
    results: Mapping[Place, LevelResult],
    paper: Mapping[str, Sequence[float]],
    notes: Sequence[str],
) -> Findings:
    """Return tables, numbers and notes."""
    columns = list(dict.fromkeys(column for column, _ in results))
    tables: list[Table] = []
    said: list[str] = []
    numbers: list[dict[str, Any]] = []
    for column in columns:
        rows = {row: result for (c, row), result in results.items() if c == column}
        tables.append(_main_table(column, rows, paper))
        if any(len(result.searched.rates) > 1 for result in rows.values()):
            tables.append(_search_table(column, rows))
        said += _comparisons(column, rows)
        numbers += [_numbers(column, row, result, paper) for row, result in rows.items()]
    if any(result.searched.at_edge for result in results.values()):
        said.append(
            "* The best rate is at the edge of the searched rates; a wider search may do better."
        )
    if paper:
        said.append("The number in square brackets is the paper's.")
    return Findings(tuple(tables), {"cells": numbers}, (*notes, *said))


def best_of(rows: Mapping[str, LevelResult], names: Iterable[str]) -> str:
    """Return the row of ``names`` with the best search (else reported) value."""
    present = [name for name in names if name in rows]

    def value(name: str) -> float:
        result = rows[name]
        return result.reported.mean if math.isnan(result.searched.mean) else result.searched.mean

    return max(present, key=value, default="")


def _main_table(
    column: str, rows: Mapping[str, LevelResult], paper: Mapping[str, Sequence[float]]
) -> Table:
    head = (
        "",
        "all",
        "global: private",
        "global: opted out",
        "Δ",
        "personal: private",
        "personal: opted out",
        "Δ",
        "server rate",
    )
    lines = [_line(row, result, paper.get(row)) for row, result in rows.items()]
    some = next(iter(rows.values()))
    constant = [some.mean(level, CONSTANT) for level in (PRIVATE, OPTED_OUT)]
    lines.append(
        (
            "constant predictor",
            "–",
            "–",
            "–",
            "–",
            *(_accuracy(mean, variance, None) for mean, _, variance in constant),
            _difference(constant[1][0], constant[0][0]),
            "–",
        )
    )
    seeds = len(some.levels)
    title = (
        f"{column}: accuracy in %. all: last 5 rounds, ± sd over {seeds} seeds; by level: the "
        "last model, with the variance over clients · 100 in brackets"
    )
    return Table(title, head, tuple(lines))


def _line(row: str, result: LevelResult, paper: Sequence[float] | None) -> tuple[str, ...]:
    published = dict(zip(PAPER_ORDER, paper, strict=True)) if paper else {}
    everybody = f"{result.reported.mean:.1f}"
    if not math.isnan(result.reported.sd):
        everybody += f" ± {result.reported.sd:.1f}"
    if "all" in published:
        everybody += f" [{published['all']:g}]"
    cells = {name: result.mean(*place) for name, place in CELLS.items()}
    text = [_accuracy(mean, var, published.get(name)) for name, (mean, _, var) in cells.items()]
    means = [mean for mean, _, _ in cells.values()]
    rate = f"{result.searched.rate:g}" + ("*" if result.searched.at_edge else "")
    return (
        row,
        everybody,
        *text[:2],
        _difference(means[1], means[0]),
        *text[2:],
        _difference(means[3], means[2]),
        rate,
    )


def _accuracy(mean: float, variance: float, paper: float | None) -> str:
    if math.isnan(mean):
        return "–"
    text = f"{mean:.1f} ({variance:.2f})"
    return text if paper is None or math.isnan(paper) else f"{text} [{paper:g}]"


def _difference(loose: float, strict: float) -> str:
    return "–" if math.isnan(loose) or math.isnan(strict) else f"{loose - strict:+.1f}"


def _search_table(column: str, rows: Mapping[str, LevelResult]) -> Table:
    rates = list(dict.fromkeys(rate for result in rows.values() for rate in result.searched.rates))
    return Table(
        f"{column}: search for the server's learning rate, accuracy in %, seed 0",
        ("", *(f"{rate:g}" for rate in rates)),
        tuple(
            (row, *(f"{result.searched.rates.get(rate, math.nan):.1f}" for rate in rates))
            for row, result in rows.items()
        ),
    )


DP_FEDAVG, AUTO = "dp-fedavg", "fedhdp auto"
FIXED = "fedhdp r = "
"""Names of the rows in a comparison."""


def _comparisons(column: str, rows: Mapping[str, LevelResult]) -> list[str]:
    """Return the best FedHDP's gain over DP-FedAvg, and ``auto``'s loss to r."""
    fixed = [row for row in rows if row.startswith(FIXED)]
    said = []
    best = best_of(rows, [*fixed, AUTO])
    if best and DP_FEDAVG in rows:
        gain = rows[best].reported.mean - rows[DP_FEDAVG].reported.mean
        how = "here" if math.isnan(rows[best].searched.mean) else "by the search"
        said.append(
            f"{column}: '{best}', the best {how}, is {gain:+.1f} points from '{DP_FEDAVG}'."
        )
    best = max(fixed, key=lambda row: rows[row].reported.mean, default="")
    if best and AUTO in rows:
        gain = rows[AUTO].reported.mean - rows[best].reported.mean
        said.append(
            f"{column}: '{AUTO}' is {gain:+.1f} points from '{best}', the best fixed r "
            "in hindsight."
        )
    return said


def _numbers(
    column: str, row: str, result: LevelResult, paper: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    cells = {name: result.mean(*place) for name, place in CELLS.items()}
    constant = {level: result.mean(level, CONSTANT) for level in (PRIVATE, OPTED_OUT)}
    return {
        "column": column,
        "row": row,
        "accuracy": result.reported.mean,
        "sd": _known(result.reported.sd),
        "seeds": len(result.levels),
        "levels": {name: _triple(cell) for name, cell in cells.items()},
        "constant": {level: _triple(cell) for level, cell in constant.items()},
        "server-learning-rate": result.searched.rate,
        "search": {f"{rate:g}": mean for rate, mean in result.searched.rates.items()},
        "at-edge": result.searched.at_edge,
        "paper": [_known(value) for value in paper[row]] if row in paper else None,
        "curve": [_known(x) for x in np.nanmean(result.reported.curves, axis=0)],
    }


def _triple(cell: tuple[float, float, float]) -> dict[str, float | None]:
    names = ("accuracy", "sd", "variance")
    return {name: _known(value) for name, value in zip(names, cell, strict=True)}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
