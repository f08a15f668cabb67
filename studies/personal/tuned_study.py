"""Studies of personal models: tuned and reported on different seeds.

Controls stand beside the strategies.

The measure is the accuracy on records like the client's own: of its personal model if the run
makes one, else of the model that it uses, after the last round. Each row's clip norm and learning
rate are chosen from one grid by runs with a separate seed, 0, which are not reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.site_summary import PERSONAL, SITE, WORST
from hdpfl_flower.monitoring.journal import Event
from server_app.in_process.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.plots import plot_columns
from studies.framework.study import (
    OF_DATA,
    OF_RUNS,
    Findings,
    Options,
    Setting,
    Study,
    Table,
    run_jobs,
    select_or_all,
)

TUNING_SEED = 0
"""Seed of the tuning runs, in no reported run."""

Place = tuple[str, str]
"""(column, row)."""

Rates = tuple[float, float]
"""(clip norm, learning rate)."""


@dataclass(frozen=True)
class TunedRow(Setting):
    """Row of the grid, in all or some columns.

    Attributes:
        columns: labels of its columns; empty: all of them.
    """

    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TunedCell:
    """Results of a row in a column, in percent.

    Attributes:
        means: accuracy over the clients, of each reported seed.
        worsts: of the worst tenth of the clients, of each reported seed.
        tried: clip norm and learning rate → accuracy with the tuning seed; empty: not
            tuned.
        chosen: clip norm and learning rate of the reported runs.
    """

    means: tuple[float, ...]
    worsts: tuple[float, ...]
    tried: Mapping[Rates, float]
    chosen: Rates

    @property
    def at_edge(self) -> bool:
        """Whether the chosen rate is at its clip norm's grid edge."""
        rates = [rate for clip, rate in self.tried if clip == self.chosen[0]]
        return len(rates) > 1 and self.chosen[1] in (min(rates), max(rates))


@dataclass(frozen=True, kw_only=True)
class TunedStudy(Study):
    """Grid of rows and columns, tuned and reported on different seeds.

    Attributes:
        base: run config keys of every run.
        rows: strategies and controls.
        columns: settings of data and budgets.
        quick_columns: labels of those of the quick form.
        clips: clip norms of the grid; empty: that of ``base`` or the row.
        rates: learning rates of the grid.
        quick_rates: of the quick form, with the first clip norm alone.
        seeds: reported runs of a cell in the full form; the quick form has one.
    """

    takes = (*OF_RUNS, *OF_DATA)
    base: Mapping[str, Any]
    rows: tuple[TunedRow, ...]
    columns: tuple[Setting, ...]
    quick_columns: tuple[str, ...] = ()
    clips: tuple[float, ...] = ()
    rates: tuple[float, ...]
    quick_rates: tuple[float, ...]
    seeds: int = 3

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Tune and run each cell, and draw accuracies by column."""
        cells = self.cells(options, folder)
        lines: dict[str, dict[str, tuple[float, float]]] = {}
        for (column, row), cell in cells.items():
            lines.setdefault(row, {})[column] = mean_and_deviation(cell.means)
        plot_columns(
            {"mean over clients": lines}, folder / f"{self.name}.png", "accuracy, %", self.title
        )
        return self.findings(cells)

    def cells(self, options: Options, folder: Path) -> dict[Place, TunedCell]:
        """Return all cells, running unfinished jobs.

        Raises:
            HDPFLError: from the first run that cannot start; finished ones are kept.
        """
        places = self.places(options)
        tried = self._search(places, options, folder)
        seeds = range(1, (options.seeds or (self.seeds if options.full else 1)) + 1)
        chosen = {place: best_of(tried[place]) for place in places}
        jobs = {
            (place, seed): self.job(place, chosen[place], seed, options, folder)
            for seed in seeds
            for place in places
        }
        runs = run_jobs(list(jobs.values()), options, self.name)
        found = {key: own_accuracy(runs[job.terms.run_id]) for key, job in jobs.items()}
        return {
            place: TunedCell(
                tuple(found[place, seed][0] for seed in seeds),
                tuple(found[place, seed][1] for seed in seeds),
                tried[place] if len(tried[place]) > 1 else {},
                chosen[place],
            )
            for place in places
        }

    def places(self, options: Options) -> list[Place]:
        """Return (column, row) of all cells.

        Raises:
            TermsError: ``--strategies`` or ``--columns`` names an entry that the study lacks.
        """
        labels = tuple(column.label for column in self.columns)
        quick = labels if options.full else self.quick_columns or labels
        columns = select_or_all(labels, options.columns or quick, "--columns")
        rows = select_or_all(
            tuple(row.label for row in self.rows), options.strategies, "--strategies"
        )
        return [
            (column, row.label)
            for column in columns
            for row in self.rows
            if row.label in rows and (not row.columns or column in row.columns)
        ]

    def job(self, place: Place, rates: Rates, seed: int, options: Options, folder: Path) -> RunJob:
        """Return a run, named by all inputs of its result."""
        column = next(c for c in self.columns if c.label == place[0])
        row = next(r for r in self.rows if r.label == place[1])
        config: dict[str, Any] = {
            **self.base,
            **column.config,
            **row.config,
            "learning-rate": rates[1],
            "seed": seed,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        if not math.isnan(rates[0]):
            config["clip-norm"] = rates[0]
        if options.model:
            config["model"] = options.model
        if options.dataset:
            config["dataset"] = options.dataset
        most = len(load_dataset(str(config["dataset"]), options.data_dir).train) // column.sites
        config["partition"] = fitting(str(config["partition"]), most)
        run = RunConfig.parse(config)
        stop = options.rounds if options.rounds < run.terms.rounds else 0
        return with_run_name(RunJob(run, column.sites, stop))

    def findings(self, cells: Mapping[Place, TunedCell]) -> Findings:
        """Return the tables of the cells."""
        columns = list(dict.fromkeys(column for column, _ in cells))
        rows = list(dict.fromkeys(row for _, row in cells))

        def table(title: str, text: Mapping[Place, str]) -> Table:
            lines = tuple((row, *(text.get((c, row), "–") for c in columns)) for row in rows)
            return Table(title, ("", *columns), lines)

        tables = [
            table(
                f"{self.title}: accuracy on records like the client's own, %, mean over clients",
                {p: _text(cell.means) + "*" * cell.at_edge for p, cell in cells.items()},
            ),
            table(
                "worst tenth of the clients, %",
                {place: _text(cell.worsts) for place, cell in cells.items()},
            ),
        ]
        if any(cell.tried for cell in cells.values()):
            chosen = {p: _of_rates(cell.chosen) for p, cell in cells.items()}
            tables.append(table("chosen with seed 0: clip norm, learning rate", chosen))
        notes = list(self.notes)
        if any(cell.at_edge for cell in cells.values()):
            notes.append(
                "* the best learning rate lies at the edge of the grid; a wider one may do better."
            )
        return Findings(tuple(tables), {"cells": [_numbers(*one) for one in cells.items()]},
                        tuple(notes))  # fmt: skip

    def _search(
        self, places: Sequence[Place], options: Options, folder: Path
    ) -> dict[Place, dict[Rates, float]]:
        """Return each cell's accuracies on the grid; NaN at a single point."""
        clips = self.clips or (math.nan,)
        rates = options.learning_rates or (self.rates if options.full else self.quick_rates)
        grid = list(product(clips if options.full else clips[:1], rates))
        if len(grid) == 1:
            return {place: {grid[0]: math.nan} for place in places}
        jobs = {
            (place, at): self.job(place, at, TUNING_SEED, options, folder)
            for place in places
            for at in grid
        }
        runs = run_jobs(list(jobs.values()), options, f"{self.name}, tuning")
        return {
            place: {at: own_accuracy(runs[jobs[place, at].terms.run_id])[0] for at in grid}
            for place in places
        }


def own_accuracy(events: Sequence[Event]) -> tuple[float, float]:
    """Return a run's final client accuracy, mean and worst tenth, %.

    NaN for a run whose clients have neither a personal model nor test records like their own.
    """
    metrics = events[-1]["metrics"]
    start = PERSONAL if f"{PERSONAL}accuracy" in metrics else SITE
    values = (metrics.get(f"{start}accuracy{end}", math.nan) for end in ("", WORST))
    mean, worst = (100 * float(value) for value in values)
    return mean, worst


def best_of(tried: Mapping[Rates, float]) -> Rates:
    """Return the best clip norm and rate, smallest on ties.

    >>> best_of({(1.0, 0.5): 80.0, (1.0, 0.25): 80.0, (2.0, 1.0): math.nan})
    (1.0, 0.25)
    """
    known = {at: mean for at, mean in tried.items() if not math.isnan(mean)} or tried
    return max(sorted(known), key=lambda at: known[at])


def fitting(partition: str, most: int) -> str:
    """Return a partition that fits ``most`` records per client.

    A number that asks for more is left out.

    ``alone``, which needs a number, has nine tenths of ``most`` instead: its class is left out
    elsewhere.

    >>> fitting("pathological:5:300", 70), fitting("iid:300", 70), fitting("iid:9", 70)
    ('pathological:5', 'iid', 'iid:9')
    >>> fitting("dirichlet:0.3:300", 70), fitting("alone:0:300", 70), fitting("alone:0:9", 70)
    ('dirichlet:0.3', 'alone:0:63', 'alone:0:9')
    """
    kind, *numbers = partition.split(":")
    place = {"iid": 0, "pathological": 1, "dirichlet": 1, "alone": 1}.get(kind, len(numbers))
    if place < len(numbers) and int(numbers[place]) > most:
        numbers[place:] = [str(most * 9 // 10)] if kind == "alone" else []
    return ":".join((kind, *numbers))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (n − 1), NaN for one value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return float(np.mean(values)), spread


def _text(values: Sequence[float]) -> str:
    mean, spread = mean_and_deviation(values)
    return f"{mean:.1f}" + ("" if math.isnan(spread) else f" ± {spread:.1f}")


def _of_rates(rates: Rates) -> str:
    return f"{rates[1]:g}" if math.isnan(rates[0]) else f"{rates[0]:g}, {rates[1]:g}"


def _numbers(place: Place, cell: TunedCell) -> dict[str, Any]:
    clip, rate = cell.chosen
    return {
        "column": place[0],
        "row": place[1],
        "accuracy": list(cell.means),
        "worst-tenth": list(cell.worsts),
        "clip-norm": None if math.isnan(clip) else clip,
        "learning-rate": rate,
        "tuning": {_of_rates(at): mean for at, mean in cell.tried.items()},
        "at-edge": cell.at_edge,
    }
