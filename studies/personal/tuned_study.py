"""Studies of each client's own model: tuned on one seed, reported on others, beside controls.

What counts is the accuracy on records like the client's own: of its personal model where the run
makes one, else of the model that it uses, after the last round. Each row's clip norm and learning
rate are chosen from one grid by runs with a seed of their own, 0, which are not reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.models.site_summary import PERSONAL, SITE, WORST
from hdpfl_flower.monitoring.journal import Event
from server_app.plots import plot_columns
from server_app.simulation.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import (
    Findings,
    Options,
    Setting,
    Study,
    Table,
    run_jobs,
    select_or_all,
)

TUNING_SEED = 0
"""Of the runs that choose clip norm and learning rate; no reported run has it."""

Place = tuple[str, str]
"""(column, row)."""

Rates = tuple[float, float]
"""(clip norm, learning rate)."""


@dataclass(frozen=True)
class Row(Setting):
    """A row of the grid, in all columns or in some.

    Attributes:
        columns: labels of the columns that it is run in; empty: all of them.
    """

    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """What was found of a row in a column, in percent.

    Attributes:
        means: accuracy over the clients, of each reported seed.
        worsts: of the worst tenth of the clients, of each reported seed.
        tried: clip norm and learning rate → accuracy with the tuning seed; empty: nothing was
            tuned.
        chosen: clip norm and learning rate of the reported runs.
    """

    means: tuple[float, ...]
    worsts: tuple[float, ...]
    tried: Mapping[Rates, float]
    chosen: Rates

    @property
    def at_edge(self) -> bool:
        """Whether the chosen rate is the least or largest of those tried at its clip norm."""
        rates = [rate for clip, rate in self.tried if clip == self.chosen[0]]
        return len(rates) > 1 and self.chosen[1] in (min(rates), max(rates))


@dataclass(frozen=True)
class Bar:
    """A difference of two rows in a column that a study asks for.

    Attributes:
        column: where.
        rows: labels of the rows whose best counts; the first where there is one alone.
        minus: label of the row that it is compared with.
        least: what the difference must reach, in points.
        worst: of the worst tenth of the clients, not of their mean.
    """

    column: str
    rows: tuple[str, ...]
    minus: str
    least: float
    worst: bool = False


@dataclass(frozen=True, kw_only=True)
class TunedStudy(Study):
    """A grid of rows and columns, tuned and reported on different seeds.

    Attributes:
        base: run config keys of every run.
        rows: strategies and controls.
        columns: settings of data and budgets.
        quick_columns: labels of those of the quick form.
        clips: clip norms of the grid; empty: that of ``base`` or the row.
        rates: learning rates of the grid.
        quick_rates: of the quick form, with the first clip norm alone.
        seeds: reported runs of a cell in the full form; the quick form has one.
        bars: differences that are asked for.
    """

    base: Mapping[str, Any]
    rows: tuple[Row, ...]
    columns: tuple[Setting, ...]
    quick_columns: tuple[str, ...] = ()
    clips: tuple[float, ...] = ()
    rates: tuple[float, ...]
    quick_rates: tuple[float, ...]
    seeds: int = 3
    bars: tuple[Bar, ...] = field(default_factory=tuple)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Tune each cell, run it with what was chosen, and draw the accuracies by column."""
        cells = self.cells(options, folder)
        lines: dict[str, dict[str, tuple[float, float]]] = {}
        for (column, row), cell in cells.items():
            lines.setdefault(row, {})[column] = mean_and_deviation(cell.means)
        plot_columns(
            {"mean over clients": lines}, folder / f"{self.name}.png", "accuracy, %", self.title
        )
        return self.findings(cells)

    def cells(self, options: Options, folder: Path) -> dict[Place, Cell]:
        """Return every cell, running what no earlier call has finished.

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
            place: Cell(
                tuple(found[place, seed][0] for seed in seeds),
                tuple(found[place, seed][1] for seed in seeds),
                tried[place] if len(tried[place]) > 1 else {},
                chosen[place],
            )
            for place in places
        }

    def places(self, options: Options) -> list[Place]:
        """Return (column, row) of every cell.

        Raises:
            TermsError: ``--strategies``, ``--columns`` or ``--noise`` names what the study has not.
        """
        select_or_all(("pld",), options.noises, "--noise")
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
        """Return a run, named by everything that changes its result."""
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

    def findings(self, cells: Mapping[Place, Cell]) -> Findings:
        """Return the tables of the cells and of the differences that are asked for."""
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
        met = [line for bar in self.bars if (line := bar_line(bar, cells))]
        if met:
            head = ("what is asked for", "least", "found, points", "met")
            tables.append(Table("differences over the same seeds", head, tuple(met)))
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
        """Return of each cell the accuracy at each point of the grid; NaN at the only one."""
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
    """Return a run's accuracy for its clients, mean and worst tenth, after its last round, in %.

    NaN for a run whose clients have neither a personal model nor test records like their own.
    """
    metrics = events[-1]["metrics"]
    start = PERSONAL if f"{PERSONAL}accuracy" in metrics else SITE
    values = (metrics.get(f"{start}accuracy{end}", math.nan) for end in ("", WORST))
    mean, worst = (100 * float(value) for value in values)
    return mean, worst


def best_of(tried: Mapping[Rates, float]) -> Rates:
    """Return the clip norm and rate with the best accuracy; the smallest of equals.

    >>> best_of({(1.0, 0.5): 80.0, (1.0, 0.25): 80.0, (2.0, 1.0): math.nan})
    (1.0, 0.25)
    """
    known = {at: mean for at, mean in tried.items() if not math.isnan(mean)} or tried
    return max(sorted(known), key=lambda at: known[at])


def fitting(partition: str, most: int) -> str:
    """Return a partition for ``most`` records a client: without the number that asks for more.

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


def bar_line(bar: Bar, cells: Mapping[Place, Cell]) -> tuple[str, str, str, str] | None:
    """Return a line of the table of differences; None where a row was not run."""
    there = {row: cells[bar.column, row] for row in bar.rows if (bar.column, row) in cells}
    other = cells.get((bar.column, bar.minus))
    if not there or other is None:
        return None

    def values(cell: Cell) -> tuple[float, ...]:
        return cell.worsts if bar.worst else cell.means

    # Of several rows the best by the tuning seed: no reported number chooses itself.
    row = max(there, key=lambda name: max(there[name].tried.values(), default=0.0))
    differences = np.subtract(values(there[row]), values(other))
    what = f"{row} − {bar.minus}, {bar.column}" + (", worst tenth" if bar.worst else "")
    met = "yes" if differences.mean() >= bar.least else "no"
    return what, f"{bar.least:+g}", f"{_text(differences.tolist(), '+')}", met


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (n − 1), NaN for one value."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return float(np.mean(values)), spread


def _text(values: Sequence[float], sign: str = "") -> str:
    mean, spread = mean_and_deviation(values)
    return f"{mean:{sign}.1f}" + ("" if math.isnan(spread) else f" ± {spread:.1f}")


def _of_rates(rates: Rates) -> str:
    return f"{rates[1]:g}" if math.isnan(rates[0]) else f"{rates[0]:g}, {rates[1]:g}"


def _numbers(place: Place, cell: Cell) -> dict[str, Any]:
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
