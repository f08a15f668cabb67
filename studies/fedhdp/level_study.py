"""Studies of privacy levels: rate search, personal models, one table.

Each row's server learning rate is searched with a separate seed, 0, and without personal models;
the reported seeds 1, 2, … run at the rate found. The search also names the best row, so that no
number of the table selects itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError
from hdpfl_tools.simulation.datasets import load_dataset
from hdpfl_tools.simulation.in_process.comparison import RunJob
from hdpfl_tools.simulation.scenarios.partitions import split
from strategies import check_strategy
from strategies.core.base import table_of
from studies.fedhdp.level_tables import LevelResult, Place, findings, read_levels
from studies.framework.kept_runs import with_run_name
from studies.framework.results import Value, best_rate, value_of
from studies.framework.study import (
    OF_DATA,
    OF_RUNS,
    Findings,
    Options,
    Setting,
    Study,
    run_jobs,
    select_or_all,
)

SEARCH_SEED = 0
"""Seed of the search for the server's rate, in no reported run."""

SITES, RECORDS = 2000, 30
"""Clients (fewer if a data set has fewer records), and records of each."""

OPT_OUT = 0.05
"""Share of clients that opt out."""


@dataclass(frozen=True, kw_only=True)
class LevelStudy(Study):
    """Table of two privacy levels, after FedHDP's Table 1.

    Attributes:
        base: run config keys of every run, with ``second``; a setting of the row's
            strategy has no table name here, since every row has its own strategy.
        rows: strategies and their settings, in the same way.
        quick_rows: labels of the rows of the quick form.
        columns: settings with a table each.
        quick_columns: labels of those of the quick form.
        rates: server learning rates searched over.
        quick_rates: those of the quick form; a single one is used without a search.
        seeds: reported runs of a row in the full form; the quick form has one.
        epsilon: of every client that does not opt out.
        alike: the class that all opted-out clients hold; None: they are drawn from all clients.
        paper: row → the paper's numbers, see ``level_tables.PAPER_ORDER``.
    """

    takes = (*OF_RUNS, *OF_DATA)
    base: Mapping[str, Any]
    rows: tuple[Setting, ...]
    quick_rows: tuple[str, ...]
    columns: tuple[Setting, ...]
    quick_columns: tuple[str, ...]
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    quick_rates: tuple[float, ...] = (1.0, 2.0)
    seeds: int = 3
    epsilon: float = 3.6
    alike: int | None = None
    paper: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def data(self) -> tuple[str, ...]:
        """The data set of every run."""
        return (str(self.base["dataset"]),)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Search the server's rate of each cell, then run the cells."""
        places = self.places(options)
        rates = options.learning_rates or (self.rates if options.full else self.quick_rates)
        searched = self.search(places, rates, options, folder)
        seeds = options.seeds or (self.seeds if options.full else 1)
        jobs = {
            (place, seed): self.job(place, searched[place].rate, seed, options, folder)
            for seed in range(1, seeds + 1)
            for place in places
        }
        runs = run_jobs(list(jobs.values()), options, self.name)
        results = {
            place: LevelResult(
                searched[place],
                value_of([runs[jobs[place, seed].terms.run_id] for seed in range(1, seeds + 1)]),
                [read_levels(jobs[place, seed]) for seed in range(1, seeds + 1)],
            )
            for place in places
        }
        paper = {} if options.dataset else self.paper  # of the paper's own data set
        return findings(results, paper, self.notes)

    def places(self, options: Options) -> list[Place]:
        """Return (column, row) of all rows of the tables.

        Raises:
            TermsError: ``--strategies`` or ``--columns`` names an entry that the study lacks.
        """
        rows = tuple(row.label for row in self.rows)
        columns = tuple(column.label for column in self.columns)
        some_rows = select_or_all(rows, options.strategies, "--strategies")
        some_columns = select_or_all(columns, options.columns, "--columns")
        if not options.full:
            some_rows = options.strategies or self.quick_rows
            some_columns = options.columns or self.quick_columns
        return [(column, row) for column in some_columns for row in some_rows]

    def search(
        self, places: Sequence[Place], rates: Sequence[float], options: Options, folder: Path
    ) -> dict[Place, Value]:
        """Return each row's value at its best server rate.

        A single rate needs no runs.

        Raises:
            HDPFLError: from the first run that cannot start; finished runs are kept.
        """
        if len(rates) == 1:
            nothing = Value(math.nan, math.nan, np.empty((0, 0)), {}, rates[0])
            return dict.fromkeys(places, nothing)
        jobs = {
            (place, rate): self.job(place, rate, SEARCH_SEED, options, folder)
            for place in places
            for rate in rates
        }
        runs = run_jobs(list(jobs.values()), options, f"{self.name}, search")
        return {
            place: best_rate({r: value_of([runs[jobs[place, r].terms.run_id]]) for r in rates})
            for place in places
        }

    def job(self, place: Place, rate: float, seed: int, options: Options, folder: Path) -> RunJob:
        """Return a run, named by all inputs of its result.

        Raises:
            DataError: the data set is missing, or no client holds ``alike``.
        """
        column = next(c for c in self.columns if c.label == place[0])
        row = next(r for r in self.rows if r.label == place[1])
        config: dict[str, Any] = {
            **self.base,
            **column.config,
            **row.config,
            "server-learning-rate": rate,
            "seed": seed,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        strategy = check_strategy(config["strategy"]).weights
        table, settings = table_of(strategy), strategy.settings_type.names()
        config = {f"{table}.{key}" if key in settings else key: v for key, v in config.items()}
        if seed == SEARCH_SEED:
            del config["second"]
        if options.model and "model" not in row.config:
            config["model"] = options.model
        if options.dataset:
            config["dataset"] = options.dataset
        where = str(config["dataset"]), options.data_dir
        sites = min(SITES, len(load_dataset(*where).train) // RECORDS)
        config["epsilons"] = f"{self.epsilon:g}+opt-out:{OPT_OUT:g}"
        if self.alike is not None:
            opted_out = alike_opt_outs(*where, str(config["partition"]), sites, seed, self.alike)
            config["epsilons"] = ",".join(
                "inf" if site in opted_out else f"{self.epsilon:g}" for site in range(sites)
            )
        run = RunConfig.parse(config)
        stop = options.rounds if options.rounds < run.terms.rounds else 0
        return with_run_name(RunJob(run, sites, stop))


@lru_cache(maxsize=16)
def alike_opt_outs(
    dataset: str, data_dir: str, partition: str, sites: int, seed: int, label: int
) -> frozenset[int]:
    """Return the clients that opt out if all hold one class.

    They are drawn among those with more than half of their records in it: ``OPT_OUT`` of all
    clients, or as many as there are.

    Raises:
        DataError: no client has more than half.
    """
    targets = load_dataset(dataset, data_dir).train.targets
    parts = split(targets, None, sites, partition, seed)
    holders = [site for site, rows in enumerate(parts) if np.mean(targets[rows] == label) > 0.5]
    if not holders:
        raise DataError(f"no client holds only class {label}; take more clients or other data")
    drawn = np.random.default_rng([seed, *b"alike"]).permutation(holders)
    return frozenset(drawn[: max(1, round(OPT_OUT * sites))].tolist())
