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
from server_app.in_process.comparison import RunJob
from studies.framework.plots import plot_columns
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
    "opted out": (OPTED_OUT, GLOBAL),
    "personal: private": (PRIVATE, PERSONAL),
    "personal: opted out": (OPTED_OUT, PERSONAL),
}
"""Columns with mean and variance over clients, in the paper's order."""

PAPER_ORDER = ("all", *CELLS)
"""Entries of a paper's row: five accuracies in percent, NaN if none."""

SHORT = 1.0
"""Points below the paper's global accuracy that a note reports."""


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

        The variance is over the clients of the level, of the accuracy as a fraction, times 100,
        as in the paper's numbers. NaN if there is no such model.
        """
        pairs = [one[level, model] for one in self.levels if (level, model) in one]
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
        raise DataError(f"{path} is missing or damaged; remove its folder to run anew") from None


def findings(
    found: Mapping[Place, LevelResult],
    paper: Mapping[str, Sequence[float]],
    notes: Sequence[str],
    picture: Path,
    title: str,
) -> Findings:
    """Draw the picture under ``title``; return tables, numbers and notes."""
    columns = list(dict.fromkeys(column for column, _ in found))
    tables: list[Table] = []
    said: list[str] = []
    numbers: list[dict[str, Any]] = []
    for column in columns:
        rows = {row: one for (c, row), one in found.items() if c == column}
        tables.append(_main_table(column, rows, paper))
        if any(len(one.searched.rates) > 1 for one in rows.values()):
            tables.append(_search_table(column, rows))
        said += [*_comparisons(column, rows), *_short_of(column, rows, paper)]
        numbers += [_numbers(column, row, one, paper) for row, one in rows.items()]
    _draw(found, columns, picture, title)
    if any(one.searched.at_edge for one in found.values()):
        said.append(
            "* the best rate lies at the edge of those searched; a wider search may do better."
        )
    if paper:
        said.append("In square brackets: the paper's number.")
    return Findings(tuple(tables), {"cells": numbers}, (*notes, *said))


def best_of(rows: Mapping[str, LevelResult], names: Iterable[str]) -> str:
    """Return the row of ``names`` with the best search (else reported) value."""
    known = [name for name in names if name in rows]

    def value(name: str) -> float:
        one = rows[name]
        return one.reported.mean if math.isnan(one.searched.mean) else one.searched.mean

    return max(known, key=value, default="")


def _main_table(
    column: str, rows: Mapping[str, LevelResult], paper: Mapping[str, Sequence[float]]
) -> Table:
    head = ("", "all", "global: private", "opted out", "Δ", "personal: private",
            "personal: opted out", "Δ", "server rate")  # fmt: skip
    lines = [_line(row, one, paper.get(row)) for row, one in rows.items()]
    some = next(iter(rows.values()))
    constant = [some.mean(level, CONSTANT) for level in (PRIVATE, OPTED_OUT)]
    lines.append(
        (
            "constant predictor", "–", "–", "–", "–",
            *(_accuracy(mean, variance, None) for mean, _, variance in constant),
            _difference(constant[1][0], constant[0][0]), "–",
        )
    )  # fmt: skip
    seeds = len(some.levels)
    title = (
        f"{column}: accuracy, %; all: last 5 rounds, ± sd over {seeds} seeds; by level: the last "
        "model, (variance over clients · 100)"
    )
    return Table(title, head, tuple(lines))


def _line(row: str, one: LevelResult, paper: Sequence[float] | None) -> tuple[str, ...]:
    published = dict(zip(PAPER_ORDER, paper, strict=True)) if paper else {}
    everybody = f"{one.reported.mean:.1f}"
    if not math.isnan(one.reported.sd):
        everybody += f" ± {one.reported.sd:.1f}"
    if "all" in published:
        everybody += f" [{published['all']:g}]"
    found = {name: one.mean(*place) for name, place in CELLS.items()}
    text = [_accuracy(mean, var, published.get(name)) for name, (mean, _, var) in found.items()]
    means = [mean for mean, _, _ in found.values()]
    rate = f"{one.searched.rate:g}" + ("*" if one.searched.at_edge else "")
    return (
        row, everybody, *text[:2], _difference(means[1], means[0]),
        *text[2:], _difference(means[3], means[2]), rate,
    )  # fmt: skip


def _accuracy(mean: float, variance: float, paper: float | None) -> str:
    if math.isnan(mean):
        return "–"
    text = f"{mean:.1f} ({variance:.2f})"
    return text if paper is None or math.isnan(paper) else f"{text} [{paper:g}]"


def _difference(loose: float, strict: float) -> str:
    return "–" if math.isnan(loose) or math.isnan(strict) else f"{loose - strict:+.1f}"


def _search_table(column: str, rows: Mapping[str, LevelResult]) -> Table:
    rates = list(dict.fromkeys(rate for one in rows.values() for rate in one.searched.rates))
    return Table(
        f"{column}: search for the server's learning rate, accuracy in %, seed 0",
        ("", *(f"{rate:g}" for rate in rates)),
        tuple(
            (row, *(f"{one.searched.rates.get(rate, math.nan):.1f}" for rate in rates))
            for row, one in rows.items()
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
        said.append(f"{column}: '{best}', the best {how}, is {gain:+.1f} points from "
                    f"'{DP_FEDAVG}'.")  # fmt: skip
    best = max(fixed, key=lambda row: rows[row].reported.mean, default="")
    if best and AUTO in rows:
        gain = rows[AUTO].reported.mean - rows[best].reported.mean
        said.append(f"{column}: '{AUTO}' is {gain:+.1f} points from '{best}', the best fixed r "
                    "in hindsight.")  # fmt: skip
    return said


def _short_of(
    column: str, rows: Mapping[str, LevelResult], paper: Mapping[str, Sequence[float]]
) -> list[str]:
    short = {
        row: one.reported.mean - paper[row][0]
        for row, one in rows.items()
        if row in paper and one.reported.mean < paper[row][0] - SHORT
    }
    if not short:
        return []
    listed = ", ".join(f"{row} {gap:+.1f}" for row, gap in short.items())
    return [f"{column}: below the paper's global accuracy by more than a point: {listed}."]


def _numbers(
    column: str, row: str, one: LevelResult, paper: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    cells = {name: one.mean(*place) for name, place in CELLS.items()}
    constant = {level: one.mean(level, CONSTANT) for level in (PRIVATE, OPTED_OUT)}
    return {
        "column": column,
        "row": row,
        "accuracy": one.reported.mean,
        "sd": _known(one.reported.sd),
        "seeds": len(one.levels),
        "levels": {name: _triple(cell) for name, cell in cells.items()},
        "constant": {level: _triple(cell) for level, cell in constant.items()},
        "server-learning-rate": one.searched.rate,
        "search": {f"{rate:g}": mean for rate, mean in one.searched.rates.items()},
        "at-edge": one.searched.at_edge,
        "paper": [_known(value) for value in paper[row]] if row in paper else None,
        "curve": [_known(x) for x in np.nanmean(one.reported.curves, axis=0)],
    }


def _triple(cell: tuple[float, float, float]) -> dict[str, float | None]:
    names = ("accuracy", "sd", "variance")
    return {name: _known(value) for name, value in zip(names, cell, strict=True)}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _draw(
    found: Mapping[Place, LevelResult], columns: Sequence[str], path: Path, title: str
) -> None:
    panels: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
    for column in columns:
        for model in (GLOBAL, PERSONAL):
            lines: dict[str, dict[str, tuple[float, float]]] = {}
            for (c, row), one in found.items():
                if c != column:
                    continue
                line = {"all": (one.reported.mean, one.reported.sd)} if model == GLOBAL else {}
                for level in (PRIVATE, OPTED_OUT):
                    mean, spread, _ = one.mean(level, model)
                    line[level] = (mean, spread)
                lines[row] = line
            panels[f"{model} model, {column}"] = lines
    plot_columns(panels, path, "accuracy, %", title)
