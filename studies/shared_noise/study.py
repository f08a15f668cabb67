"""Accuracy with shared noise, beside noise of each site and pooled records.

Ours. In every row every site keeps the same (ε, δ): `mmse` is the default, with a noise of each
site's own; `shared` is a sum with one noise, and one of the other sites may collude with the
server; `pooled` is DP-SGD by a trusted party that holds all records and scales those of each site
by its noise (Boenisch et al., NeurIPS 2023), with the same steps and rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import Event
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob
from hdpfl_tools.simulation.own_data.dataset import with_own_task
from studies.framework.kept_runs import finished_run, keep, with_run_name
from studies.framework.plots import plot_columns
from studies.framework.results import Value, value_of
from studies.framework.study import (
    Findings,
    Options,
    Setting,
    Study,
    Table,
    run_jobs,
    select_or_all,
)
from studies.shared_noise.hospitals import split_of
from studies.shared_noise.pooled import keep_pooled, stored_pooled

ALONE, SHARED, POOLED = "mmse", "shared", "pooled"
ROWS: Mapping[str, Mapping[str, Any]] = {
    ALONE: {"strategy": "mmse", "rounds": 12},
    SHARED: {"noise": "shared", "rounds": 60, "colluders": 1},
    POOLED: {"noise": "shared", "rounds": 60, "purpose": POOLED},
}
FIRST_SEED = 41
"""No constant of the rate was chosen on it or on those that follow."""


def _mnist(label: str, epsilons: str, partition: str = "pathological:2:600") -> Setting:
    return Setting(label, {"dataset": "mnist", "partition": partition, "epsilons": epsilons})


def _heart(label: str, epsilons: str) -> Setting:
    return Setting(label, {"partition": "natural", "epsilons": epsilons}, sites=4)


def _list(*groups: tuple[int, str]) -> str:
    return ",".join(",".join([epsilon] * count) for count, epsilon in groups)


def _crowd(number: int) -> Setting:
    config = {"dataset": "mnist", "partition": "iid:600", "epsilons": "0.3"}
    return Setting(f"n = {number}", config, sites=number)


COLUMNS = (
    _mnist("MNIST: every ε .3", "0.3", "iid:600"),
    _mnist("two labels: ε .3 × 10; 1 × 6; 4 × 4", _list((10, "0.3"), (6, "1"), (4, "4"))),
    _mnist("two labels: ε .1 to 8", "uniform:0.1:8"),
    _mnist("two labels: ε .05 × 5; 8 × 15", _list((5, "0.05"), (15, "8"))),
    _heart("heart: every ε .3", "0.3"),
    _heart("heart: every ε 1", "1"),
    _heart("heart: ε .5; 1; 4; 8", "0.5,1,4,8"),
)
CROWDS = tuple(_crowd(number) for number in (4, 8, 20))
"""Columns of the picture: sites of 600 records at ε .3."""


@dataclass(frozen=True)
class Cell:
    """A row, a column and a seed."""

    row: str
    column: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class SharedNoise(Study):
    """Table of the three rows by setting, and their accuracy by the number of sites."""

    takes = ("--seeds", "--rounds", "--strategies", "--columns", "--dataset")

    @property
    def data(self) -> tuple[str, ...]:
        """Data sets of its cases."""
        return ("mnist", "heart")

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run all cells; draw accuracy against the number of sites."""
        labels = [column.label for column in (*COLUMNS, *CROWDS)]
        columns = select_or_all(labels, options.columns, "--columns")
        rows = select_or_all(tuple(ROWS), options.strategies, "--strategies")
        cells = {
            Cell(row, column, FIRST_SEED + number): self.job(row, column, number, options, folder)
            for column in columns
            for row in rows
            for number in range(options.seeds or _seeds(column))
        }
        runs = run_jobs(list(cells.values()), options, self.name, keep_either, stored_either)
        values = {
            (row, column): value_of(
                [
                    runs[job.terms.run_id]
                    for cell, job in cells.items()
                    if (cell.row, cell.column) == (row, column)
                ]
            )
            for row in rows
            for column in columns
        }
        self.draw(values, folder / f"{self.name}.png")
        head = (self.unit, *rows)
        lines = tuple(
            (
                column,
                *(
                    f"{values[row, column].mean:.1f} ± {_digits(values[row, column])}"
                    for row in rows
                ),
            )
            for column in columns
        )
        numbers = {
            column: {row: [values[row, column].mean, values[row, column].sd] for row in rows}
            for column in columns
        }
        title = f"{self.title}, seeds from {FIRST_SEED}"
        return Findings((Table(title, head, lines),), {"cells": numbers}, self.notes)

    unit = "Final accuracy in %: mean of the last 5 rounds, ± sd over seeds"

    def job(self, row: str, column: str, number: int, options: Options, folder: Path) -> RunJob:
        """Return the run of a cell, named by its inputs."""
        setting = next(c for c in (*COLUMNS, *CROWDS) if c.label == column)
        seed = FIRST_SEED + number
        config: dict[str, Any] = {
            **setting.config,
            **ROWS[row],
            "seed": seed,
            "first.moments.share": 0.0,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        if options.dataset:
            config |= {"dataset": options.dataset, "partition": "iid"}
        if "dataset" not in config:
            config["dataset"] = f"file:{split_of(seed, options.data_dir, folder)}"
        run = RunConfig.parse(with_own_task(config, Path.cwd()))
        stop = options.rounds if options.rounds < run.terms.rounds else 0
        return with_run_name(RunJob(run, setting.sites, stop))

    def draw(self, values: Mapping[tuple[str, str], Value], path: Path) -> None:
        """Draw the rows' accuracy against the number of sites, where the columns are there."""
        lines: dict[str, dict[str, tuple[float, float]]] = {}
        for (row, column), value in values.items():
            if column.startswith("n = "):
                lines.setdefault(row, {})[column] = (value.mean, value.sd)
        if lines:
            title = "MNIST, sites of 600 records, every ε .3"
            plot_columns({title: lines}, path, "final accuracy, %", self.title)


def keep_either(job: RunJob, on_round: OnRound) -> list[Event]:
    """Run a job in a federation, or on pooled records."""
    return (keep_pooled if job.terms.purpose == POOLED else keep)(job, on_round)


def stored_either(job: RunJob) -> list[Event] | None:
    """Return the rounds of a finished run, or None."""
    return (stored_pooled if job.terms.purpose == POOLED else finished_run)(job)


def _seeds(column: str) -> int:
    """Return the runs of a cell: more of hospitals, whose test sets are small."""
    return 20 if column.startswith("heart") else 3


def _digits(value: Value) -> str:
    return "–" if np.isnan(value.sd) else f"{value.sd:.1f}"


SHARED_NOISE = SharedNoise(
    name="shared-noise",
    title="Shared noise and own noise at equal ε",
    source="ours (no paper)",
    minutes=45,
    notes=(
        "mmse takes 12 rounds of local epochs, as in its tables; shared and pooled take 60 "
        "steps of all records. In all rows the server finds its rate.",
    ),
)
