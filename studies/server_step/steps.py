"""Server steps under DP: what a rate at the server is worth, and what steps with a past add.

20 clients of MNIST, true noise levels, the published kinds of ε. A row's client and server rates
are chosen together from a few pairs by runs with a seed of their own, 0; the seeds 1, 2, … are
reported. Both numbers of the columns with a tail are of the same runs: the mean of the last half of
the models, which is reported, and the model that sites train from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
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
from studies.personal.tuned_study import mean_and_deviation

SEARCH_SEED = 0
"""Of the runs that choose the rates; no reported run has it."""

SITES = 20

AUTO = ("auto", "auto")
"""The pair of a row whose rates are found in the run."""

Rates = tuple[float | str, float | str]
"""(``learning-rate``, ``server-learning-rate``)."""

Place = tuple[str, str]
"""(column, row)."""


@dataclass(frozen=True)
class Row(Setting):
    """A row of the table.

    Attributes:
        rates: the pairs that are searched over; one alone is taken without a search.
        many: those of the columns with many local steps; empty: the same.
    """

    rates: tuple[Rates, ...] = (AUTO,)
    many: tuple[Rates, ...] = ()


@dataclass(frozen=True)
class Cell:
    """What was found of a row in a column, in percent.

    Attributes:
        rates: of the reported runs.
        tried: rates → accuracy with the search's seed; empty: nothing was searched for.
        reported: accuracy of the reported model, a seed each.
        broadcast: that of the model that sites train from.
    """

    rates: Rates
    tried: Mapping[Rates, float]
    reported: tuple[float, ...]
    broadcast: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ServerStepStudy(Study):
    """A table of server steps.

    Attributes:
        base: run config keys of every run.
        rows: strategies with their rates.
        columns: settings.
        quick_rows: labels of the rows of the quick form.
        quick_columns: labels of the columns of the quick form.
        seeds: reported runs of a cell in the full form; the quick form has one, and no search.
    """

    base: Mapping[str, Any]
    rows: tuple[Row, ...]
    columns: tuple[Setting, ...]
    quick_rows: tuple[str, ...]
    quick_columns: tuple[str, ...]
    seeds: int = 3
    paper: Mapping[Place, float] = field(default_factory=dict)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Search each cell's rates, run it with them, and draw the accuracies by column."""
        cells = self.cells(options, folder)
        lines: dict[str, dict[str, tuple[float, float]]] = {}
        for (column, row), cell in cells.items():
            lines.setdefault(row, {})[column] = mean_and_deviation(cell.reported)
        path = folder / f"{self.name}.png"
        plot_columns({"20 clients": lines}, path, "accuracy, %", self.title)
        return self.findings(cells)

    def cells(self, options: Options, folder: Path) -> dict[Place, Cell]:
        """Return every cell, running what no earlier call has finished.

        Raises:
            HDPFLError: from the first run that cannot start; finished ones are kept.
        """
        places = self.places(options)
        grid = {place: self.rates(place, options) for place in places}
        jobs = {
            (place, rates): self.job(place, rates, SEARCH_SEED, options, folder)
            for place in places
            for rates in grid[place]
            if len(grid[place]) > 1
        }
        runs = run_jobs(list(jobs.values()), options, f"{self.name}, search")
        tried: dict[Place, dict[Rates, float]] = {place: {} for place in places}
        for (place, rates), job in jobs.items():
            tried[place][rates] = result_of(runs[job.terms.run_id])
        chosen = {
            place: max(tried[place], key=tried[place].__getitem__)
            if tried[place]
            else grid[place][0]
            for place in places
        }
        seeds = range(1, (options.seeds or (self.seeds if options.full else 1)) + 1)
        reported = {
            (place, seed): self.job(place, chosen[place], seed, options, folder)
            for seed in seeds
            for place in places
        }
        runs = run_jobs(list(reported.values()), options, self.name)
        found = {}
        for place in places:
            events = [runs[reported[place, seed].terms.run_id] for seed in seeds]
            found[place] = Cell(
                chosen[place],
                tried[place],
                tuple(result_of(one) for one in events),
                tuple(result_of(one, "broadcast-accuracy") for one in events),
            )
        return found

    def places(self, options: Options) -> list[Place]:
        """Return (column, row) of every cell to fill.

        Raises:
            TermsError: ``--strategies``, ``--columns`` or ``--noise`` names what the study has
                not; or ``--learning-rate`` is given.
        """
        select_or_all(("pld",), options.noises, "--noise")
        if options.learning_rates:
            raise TermsError("--learning-rate: this study searches over pairs of rates of its own")
        rows = select_or_all([row.label for row in self.rows], options.strategies, "--strategies")
        columns = select_or_all(
            [column.label for column in self.columns], options.columns, "--columns"
        )
        if not options.full:
            rows = options.strategies or self.quick_rows
            columns = options.columns or self.quick_columns
        return [(column, row) for column in columns for row in rows]

    def rates(self, place: Place, options: Options) -> tuple[Rates, ...]:
        """Return the pairs that a cell is searched over: the middle one alone in the quick form."""
        column, row = self.at(place)
        rates = (
            row.many if row.many and int(column.config.get("local-steps", 0)) > 10 else row.rates
        )
        return rates if options.full else (rates[len(rates) // 2],)

    def at(self, place: Place) -> tuple[Setting, Row]:
        """Return the column and the row of a cell."""
        column = next(column for column in self.columns if column.label == place[0])
        return column, next(row for row in self.rows if row.label == place[1])

    def job(self, place: Place, rates: Rates, seed: int, options: Options, folder: Path) -> RunJob:
        """Return a run, named by everything that changes its result."""
        column, row = self.at(place)
        config: dict[str, Any] = {
            **self.base,
            **column.config,
            **row.config,
            "learning-rate": rates[0],
            "server-learning-rate": rates[1],
            "seed": seed,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        if options.model:
            config["model"] = options.model
        if options.dataset:
            config["dataset"] = options.dataset
        run = RunConfig.parse(config)
        stop = options.rounds if options.rounds < run.terms.rounds else 0
        return with_run_name(RunJob(run, SITES, stop))

    def findings(self, cells: Mapping[Place, Cell]) -> Findings:
        """Return the table of accuracies, that of the rates, and the numbers."""
        columns = list(dict.fromkeys(column for column, _ in cells))
        rows = list(dict.fromkeys(row for _, row in cells))

        def table(title: str, text: Mapping[Place, str]) -> Table:
            lines = tuple((row, *(text[column, row] for column in columns)) for row in rows)
            return Table(title, ("", *columns), lines)

        unit = "accuracy, %: mean of the last tenth of the rounds, ± sd over seeds"
        return Findings(
            (
                table(unit, {place: text_of(cell) for place, cell in cells.items()}),
                table(
                    "client rate × server rate",
                    {
                        place: " × ".join(_rate(r) for r in cell.rates)
                        for place, cell in cells.items()
                    },
                ),
            ),
            {"cells": [_numbers(place, cell) for place, cell in cells.items()]},
            self.notes,
        )


def result_of(events: Sequence[Event], metric: str = "accuracy") -> float:
    """Return the mean accuracy of the last tenth of a run's rounds, at least one, in percent."""
    last = events[-max(1, len(events) // 10) :]
    values = [float(event["metrics"].get(metric, math.nan)) for event in last]
    return 100 * sum(values) / len(values)


def text_of(cell: Cell) -> str:
    """Return a cell's text: the reported model, and the broadcast one where it is another."""
    texts = []
    for values in dict.fromkeys((cell.reported, cell.broadcast)):
        mean, deviation = mean_and_deviation(values)
        if not math.isnan(mean):
            spread = "" if math.isnan(deviation) else f" ± {deviation:.1f}"
            texts.append(f"{mean:.1f}{spread}")
    return texts[0] if len(texts) == 1 else f"{texts[0]} (last: {texts[1]})"


def _rate(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _numbers(place: Place, cell: Cell) -> dict[str, Any]:
    column, row = place
    tail = not math.isnan(cell.broadcast[0])
    return {
        "column": column,
        "row": row,
        "rates": list(cell.rates),
        "accuracy": list(cell.reported),
        "broadcast-accuracy": list(cell.broadcast) if tail else None,
        "searched": {" × ".join(map(_rate, rates)): v for rates, v in cell.tried.items()},
    }
