"""Coverage of the intervals of coefficients (``after.coefficients``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hdpfl_tools.coordinator.progress import rounds_bar
from hdpfl_tools.simulation.in_process.worker_pool import make_pool
from studies.framework.study import Findings, Options, Study, Table, select_or_all
from studies.intervals.federations import Federation, expected, fitted

RARE = (500, 8000, 3000, 4000, 1000)
CASES: Mapping[str, tuple[str, Federation]] = {
    "classes": ("logistic", Federation()),
    "classes: few records": ("logistic", Federation(records=(500,) * 5)),
    "classes: one site with little noise": ("logistic", Federation((0.3, 0.3, 0.3, 0.3, 8))),
    "classes: two sites": ("logistic", Federation((2, 8), (3000, 500))),
    "classes: class 1 is a tenth": ("logistic", Federation(records=RARE, rare=True)),
    "classes: different sites": ("logistic", Federation(apart=6)),
    "classes: wide bounds": ("logistic", Federation((2, 4, 8, 16, 16), (3000,) * 5, wide=True)),
    "classes: a wrong model": ("logistic", Federation(records=(4000,) * 5, bent=0.5)),
    "classes: an untrained model": ("logistic", Federation(trained=0.0)),
    "number": ("squared", Federation()),
    "number: a wrong model": ("squared", Federation(bent=0.5)),
    "survival": ("hazard", Federation(records=(6000,) * 5)),
    "survival: few records": ("hazard", Federation((2, 4, 8, 16, 16), (1500,) * 5)),
    "survival: rare events": ("hazard", Federation(records=(9000,) * 5, rare=True)),
}  # fmt: skip
"""Five sites of ε .5 to 8 and 2,000 records each, unless said otherwise."""
FEDERATIONS = 1000
AT_ONCE = 25


@dataclass(frozen=True, kw_only=True)
class Intervals(Study):
    """Table of coverage by case."""

    takes = ("--seeds", "--columns")

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Draw all federations."""
        del folder
        names = select_or_all(list(CASES), options.columns, "--columns")
        number = options.seeds or FEDERATIONS
        starts = range(0, number, AT_ONCE)
        jobs = [(name, first, min(first + AT_ONCE, number)) for name in names for first in starts]
        found: dict[str, list[np.ndarray]] = {name: [] for name in names}
        with rounds_bar(len(jobs), self.name) as tick, make_pool(options.cores) as pool:
            for (name, *_), part in zip(jobs, pool.map(_drawn, jobs), strict=True):
                found[name].append(part)
                tick()
        cells = {name: _cells(np.concatenate(parts)) for name, parts in found.items()}
        head = (
            "",
            "coverage",
            "lowest coverage of a coefficient",
            "highest coverage of a coefficient",
            "share of intervals shown",
            "standard error / true standard error",
        )
        title = f"{self.title}: {number} federations"
        lines = tuple((name, *(f"{value:.3f}" for value in row)) for name, row in cells.items())
        return Findings((Table(title, head, lines),), {"cells": cells}, self.notes)


def _drawn(job: tuple[str, int, int]) -> np.ndarray:
    """Return errors over their standard errors, and reaches, ``(federations, 2, coefficients)``."""
    name, first, last = job
    (loss, case), rows = CASES[name], []
    true = expected(loss, case)
    for seed in range(first, last):
        fit = fitted(loss, case, seed)
        away = (fit.values - true) / fit.errors
        rows.append([away[-6:], np.full(6, fit.reach)])
    return np.array(rows)


def _cells(drawn: np.ndarray) -> tuple[float, ...]:
    away, reach = drawn[:, 0], drawn[:, 1]
    shown = np.isfinite(away)
    covered = np.where(shown, np.abs(away) <= reach, np.nan)
    often = shown.mean(0) >= 0.1
    each = np.nanmean(covered[:, often], 0) if often.any() else np.array([np.nan])
    total = float(np.nanmean(covered)) if shown.any() else float("nan")
    spread = float(np.nanstd(away)) if shown.any() else float("nan")
    return total, float(each.min()), float(each.max()), float(shown.mean()), 1 / spread


INTERVALS = Intervals(
    name="intervals",
    title="Coverage of intervals of 95 %",
    source="ours (no paper)",
    minutes=15,
    notes=(
        "The coefficients of the model are seven tenths of the true ones, with noise of 0.1 in log "
        "odds.",
        "Coverage is that of the shown intervals. The true standard error is the standard "
        "deviation of the coefficients.",
    ),
)
