"""Accuracy with scales of a first message, beside wide bounds and exact moments.

Ours. `bounds` scales a column by its public bounds alone; `first` by noisy means and deviations of
one charged message (`first.moments`, the default of tables of mostly numbers); `exact` by the exact
ones, free of charge, which no run may read; `off` by values as wrong as those of a textbook may be
(`typical` in a schema). Each with noise of every site's own (the default) and shared noise, at the
same ε; `none` is the model without noise and with exact moments. Where InterpretML is installed,
its DP-EBM on the pooled records of a trusted curator stands beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.releases.moments import SHARE
from hdpfl_tools.simulation.in_process.comparison import RunJob
from hdpfl_tools.simulation.own_data.dataset import with_own_task
from studies.framework.kept_runs import finished_run, keep, with_run_name
from studies.framework.study import Findings, Options, Study, Table, run_jobs, select_or_all
from studies.scales.curator import NAME, curator_accuracy, is_installed
from studies.scales.tables import TABLES, split_of

OFF: Mapping[str, Any] = {"first.moments.share": 0.0}
FIRST: Mapping[str, Any] = {"first.moments.share": SHARE}
SHARED: Mapping[str, Any] = {"noise": "shared"}
ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bounds": ("", OFF),
    "first": ("", FIRST),
    "off": ("off", OFF),
    "exact": ("exact", OFF),
    "shared bounds": ("", {**OFF, **SHARED}),
    "shared first": ("", {**FIRST, **SHARED}),
    "shared off": ("off", {**OFF, **SHARED}),
    "shared exact": ("exact", {**OFF, **SHARED}),
    "none": ("exact", {**OFF, "epsilons": "inf"}),
}
"""Row: source of the columns' scales beside bounds, and run config keys."""
EPSILONS = (1.0, 0.3)
SPLITS = 10
"""Constants were chosen on splits 11 to 15."""


@dataclass(frozen=True, kw_only=True)
class Scales(Study):
    """Table of the rows by table and ε."""

    takes = ("--seeds", "--strategies", "--columns")

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run all cells."""
        labels = {f"{name} ε {eps:g}": (name, eps) for name in TABLES for eps in EPSILONS}
        columns = select_or_all(list(labels), options.columns, "--columns")
        rows = select_or_all(tuple(ROWS), options.strategies, "--strategies")
        seeds = range(1, (options.seeds or SPLITS) + 1)
        jobs = {
            (row, column, seed): self.job(row, *labels[column], seed, options, folder)
            for column in columns
            for row in rows
            for seed in seeds
        }
        runs = run_jobs(list(jobs.values()), options, self.name, keep, finished_run)
        values = {
            column: {
                row: [
                    float(runs[jobs[row, column, seed].terms.run_id][-1]["metrics"]["accuracy"])
                    for seed in seeds
                ]
                for row in rows
            }
            for column in columns
        }
        notes = self.notes
        if is_installed():
            rows = (*rows, NAME)
            for column in columns:
                splits = [self._split(labels[column][0], seed, options, folder) for seed in seeds]
                epsilon = labels[column][1]
                values[column][NAME] = [curator_accuracy(path, epsilon) for path in splits]
        else:
            notes = (*notes, f"The row {NAME!r} needs: pip install interpret-core")
        lines = tuple((column, *(_cell(values[column][row]) for row in rows)) for column in columns)
        title = f"{self.title}: test accuracy, mean ± standard error of {len(seeds)} splits"
        return Findings((Table(title, ("", *rows), lines),), {"cells": values}, notes)

    def _split(
        self, table: str, seed: int, options: Options, folder: Path, typical: str = ""
    ) -> Path:
        return split_of(table, seed, options.data_dir, folder, typical=typical)

    def job(
        self, row: str, table: str, epsilon: float, seed: int, options: Options, folder: Path
    ) -> RunJob:
        """Return the run of a cell, named by its inputs."""
        typical, keys = ROWS[row]
        path = self._split(table, seed, options, folder, typical)
        config: dict[str, Any] = {
            "dataset": f"file:{path}",
            "partition": "natural",
            "epsilons": f"{epsilon:g}",
            "seed": 1,
            "runs-dir": str((folder / "runs").absolute()),
            **keys,
        }
        return with_run_name(RunJob(RunConfig.parse(with_own_task(config, Path.cwd())), 4))


def _cell(values: list[float]) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):.3f} ± {error:.3f}"


SCALES = Scales(
    name="scales",
    title="Accuracy with different scales of the number columns",
    source="ours (no paper)",
    minutes=12,
    notes=("The table heart also has one-hot features, and its bounds are near its values.",),
)
