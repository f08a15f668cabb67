"""Base of studies: a grid of runs, its table, paper numbers.

A study declares rows (strategies), columns (settings) and blocks (noise formulas); the framework
crosses them with seeds and learning rates, runs missing jobs (``kept_runs.py``) and reads each
cell (``results.py``). Studies without training make their findings themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.devices import available_cores
from hdpfl_tools.coordinator.progress import rounds_bar
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob, compare
from hdpfl_tools.simulation.in_process.liars import Attack
from server_app.plots import plot_panels
from studies.framework.kept_runs import finished_run, keep, with_run_name
from studies.framework.plots import plot_columns
from studies.framework.results import Value, grid_tables, grid_values

NOISES = {"robust-hdp": "the paper's noise", "pfa": "the paper's noise", "pld": "our accountant"}
"""Names of a table's blocks, by the term ``calibration``."""


@dataclass(frozen=True)
class Options:
    """User options of a study; empty or 0 keeps its default.

    Attributes:
        full: as published, instead of the quick form.
        seeds: runs of each cell.
        rounds: rounds after which a run ends; the noise stays that of the planned rounds.
        strategies: the rows to run.
        columns: the columns to run, by their labels; empty: the study's.
        against: the row that paired differences are to.
        learning_rates: the tuning grid of each method.
        noises: noise formulas: ``paper``, ``pld``.
        model: the network.
        dataset: the data set.
        data_dir: folder of the data sets.
        processes: simultaneous runs; 0: one per core.
    """

    full: bool = False
    seeds: int = 0
    rounds: int = 0
    strategies: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    against: str = ""
    learning_rates: tuple[float, ...] = ()
    noises: tuple[str, ...] = ()
    model: str = ""
    dataset: str = ""
    data_dir: str = ""
    processes: int = 0

    @property
    def cores(self) -> int:
        """Simultaneous runs."""
        return self.processes or available_cores()

    @property
    def given(self) -> dict[str, str]:
        """Options that differ from the study's own, as words of the command: name → value."""
        values = {
            "--seeds": f"{self.seeds or ''}",
            "--rounds": f"{self.rounds or ''}",
            "--strategies": ",".join(self.strategies),
            "--columns": ",".join(self.columns),
            "--learning-rate": ",".join(f"{rate:g}" for rate in self.learning_rates),
            "--against": self.against,
            "--noise": ",".join(self.noises),
            "--model": self.model,
            "--dataset": self.dataset,
        }
        return {option: value for option, value in values.items() if value}


# Parts of a study's ``takes``.
OF_RUNS = ("--seeds", "--rounds", "--strategies", "--columns", "--learning-rate")
OF_DATA = ("--model", "--dataset")


@dataclass(frozen=True)
class Table:
    """Text table: title, head, and rows of equal length."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Findings:
    """Findings: tables for people, numbers for programs, notes."""

    tables: tuple[Table, ...]
    numbers: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """Row or column of the grid.

    Attributes:
        label: its head in the table.
        config: run config keys that make it.
        sites: number of sites that share the records.
        drawn: seed → more run config keys, for values drawn anew with each seed.
        attack: lying sites and their attack; None: no site lies.
        personal: whether the sites' personal models count, not the server's model.
    """

    label: str
    config: Mapping[str, Any] = field(default_factory=dict)
    sites: int = 20
    drawn: Callable[[int], Mapping[str, Any]] | None = None
    attack: Attack | None = None
    personal: bool = False


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """Base class of the studies of ``hdpfl reproduce``.

    Attributes:
        name: as users write it.
        title: the result that it shows.
        source: the paper and its figure or table.
        minutes: of the quick form, on two cores.
        notes: agreements with the paper, differences, and their reasons.
        takes: options of the command that have an effect on it, beside ``--full``.
    """

    takes: ClassVar[tuple[str, ...]]
    name: str
    title: str
    source: str
    minutes: int
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the data sets that it reads from ``--data-dir``."""
        return ()

    def check(self, options: Options) -> None:
        """Refuse options without effect on this study.

        Raises:
            TermsError: with those that it takes.
        """
        if refused := [option for option in options.given if option not in self.takes]:
            raise TermsError(
                f"the study '{self.name}' does not take {', '.join(refused)}; it takes "
                f"{', '.join(self.takes)}"
            )

    @abstractmethod
    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run missing jobs and return the findings.

        Where the source has a figure, ``<name>.png`` is drawn into ``folder``.

        Raises:
            HDPFLError: from the first run that cannot start; finished runs are kept.
        """


@dataclass(frozen=True, kw_only=True)
class GridStudy(Study):
    """Study that trains.

    Attributes:
        base: run config keys of every run; the noise is planned for ``rounds``.
        rows: strategies by name, or settings; a column's number of sites counts.
        columns: settings, as published.
        quick_columns: labels of those that the quick form runs; empty: all.
        noises: values of ``calibration``, a block each; the quick form runs only the first
            unless ``quick_noises`` says otherwise.
        rates: learning rates as published, or the tuning grid.
        quick_rates: those of the quick form.
        quick_rounds: rounds after which the quick form stops.
        seeds: runs of a cell in the full form; the quick form runs one.
        paper: (row, column) → the paper's number, in the unit of the table.
        picture: accuracy by round (``curves``), or by column (``columns``).
        metrics: a block's name beside its noise → its accuracy metric.
    """

    takes = (*OF_RUNS, "--against", "--noise", *OF_DATA)
    base: Mapping[str, Any]
    rows: tuple[str | Setting, ...]
    columns: tuple[Setting, ...]
    quick_columns: tuple[str, ...] = ()
    noises: tuple[str, ...] = ("robust-hdp", "pld")
    quick_noises: int = 1
    rates: tuple[float, ...] = (0.003, 0.01, 0.03)
    quick_rates: tuple[float, ...] = (0.01,)
    quick_rounds: int = 20
    seeds: int = 3
    paper: Mapping[tuple[str, str], float] = field(default_factory=dict)
    picture: str = "curves"
    metrics: Mapping[str, str] = field(default_factory=lambda: {"": "accuracy"})

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Run all cells, read their metrics, draw the picture."""
        jobs = {key: self.job(key, options, folder) for key in self.keys(options)}
        runs = run_jobs(list(jobs.values()), options, self.name)
        values = self.read({key: runs[job.terms.run_id] for key, job in jobs.items()})
        self.draw(values, folder / f"{self.name}.png")
        paper = {} if options.dataset else self.paper  # of the paper's own data set
        tables, numbers, notes = grid_tables(values, paper, self.unit, self._against(options))
        return Findings(tuple(Table(*table) for table in tables), numbers, (*self.notes, *notes))

    def _against(self, options: Options) -> str:
        """Return the row that differences are to; empty: the first that runs."""
        labels = [_setting(row).label for row in self.rows]
        return select_or_all(labels, (options.against,), "--against")[0] if options.against else ""

    unit = "Final accuracy in %: mean of the last 5 rounds, ± sd over seeds"

    @property
    def data(self) -> tuple[str, ...]:
        """The data set of every run."""
        return (str(self.base["dataset"]),)

    def keys(self, options: Options) -> list[Key]:
        """Return every run's place in the grid.

        Raises:
            TermsError: ``--strategies``, ``--columns`` or ``--noise`` names an entry that the study
                lacks.
        """
        rows = select_or_all(
            [_setting(row).label for row in self.rows], options.strategies, "--strategies"
        )
        noises = self._noises(options)
        labels = tuple(column.label for column in self.columns)
        quick = labels if options.full else self.quick_columns or labels
        columns = select_or_all(labels, options.columns or quick, "--columns")
        rates = options.learning_rates or (self.rates if options.full else self.quick_rates)
        seeds = options.seeds or (self.seeds if options.full else 1)
        return [
            Key(noise, row, column, rate, seed)
            for seed in range(1, seeds + 1)
            for rate in rates
            for noise in noises
            for column in columns
            for row in rows
        ]

    def job(self, key: Key, options: Options, folder: Path) -> RunJob:
        """Return the run of a grid place, named by its inputs."""
        column = next(c for c in self.columns if c.label == key.column)
        row = next(r for r in map(_setting, self.rows) if r.label == key.row)
        planned = int(self.base["rounds"])
        stop = options.rounds or (0 if options.full else self.quick_rounds)
        config: dict[str, object] = {
            **self.base,
            **column.config,
            **row.config,
            **(column.drawn(key.seed) if column.drawn else {}),
            "calibration": key.noise,
            "learning-rate": key.rate,
            "seed": key.seed,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        if options.model:
            config["model"] = options.model
        if options.dataset:
            config["dataset"] = options.dataset
        run = RunConfig.parse(config)
        return with_run_name(
            RunJob(
                run,
                column.sites,
                # The noise is always that of the planned rounds: a run that stops early is a part
                # of the whole.
                stop if stop < planned else 0,
                row.attack or column.attack,
            )
        )

    def read(self, runs: Mapping[Key, Sequence[Any]]) -> dict[tuple[str, str, str], Value]:
        """Return each cell's value by (block, row, column) at its rate."""
        cells: dict[tuple[str, str, str], dict[float, list[Sequence[Any]]]] = {}
        for key, events in runs.items():
            cell = cells.setdefault((NOISES[key.noise], key.row, key.column), {})
            cell.setdefault(key.rate, []).append(events)
        personal = [row.label for row in map(_setting, self.rows) if row.personal]
        return grid_values(cells, self.metrics, personal)

    def draw(self, values: Mapping[tuple[str, str, str], Value], path: Path) -> None:
        """Draw one panel per block, for curves also per column."""
        if self.picture == "curves":
            curves: dict[str, dict[str, Any]] = {}
            for (block, row, column), value in values.items():
                curves.setdefault(f"{column}, {block}", {})[row] = value.curves
            plot_panels(curves, path, self.title)
            return
        lines: dict[str, dict[str, dict[str, tuple[float, float]]]] = {}
        for (block, row, column), value in values.items():
            line = lines.setdefault(block, {}).setdefault(row, {})
            line[column] = (value.mean, value.sd)
        plot_columns(lines, path, "final accuracy, %", self.title)

    def _noises(self, options: Options) -> tuple[str, ...]:
        if not options.noises:
            return self.noises if options.full else self.noises[: self.quick_noises]
        names = {"pld" if n == "pld" else "paper": n for n in self.noises}
        return tuple(names[n] for n in select_or_all(tuple(names), options.noises, "--noise"))


@dataclass(frozen=True)
class Key:
    """A run's place in a grid."""

    noise: str
    row: str
    column: str
    rate: float
    seed: int


def run_jobs(
    jobs: Sequence[RunJob],
    options: Options,
    title: str,
    work: Callable[[RunJob, OnRound], list[Any]] = keep,
    stored: Callable[[RunJob], list[Any] | None] = finished_run,
) -> dict[str, list[Any]]:
    """Return run id → round events, running unfinished jobs.

    ``work`` runs a job and stores its rounds; ``stored`` reads those of an earlier call, or None.

    Raises:
        HDPFLError: from the first job that cannot run; finished ones are kept.
    """
    # Grid places with equal runs share one: the name states all inputs of a result.
    unique = {job.terms.run_id: job for job in jobs}
    runs = {name: events for name, job in unique.items() if (events := stored(job)) is not None}
    todo = [job for name, job in unique.items() if name not in runs]
    total = sum(job.stop_after or job.terms.rounds for job in todo)
    if todo:
        text = f"{title}: {len(todo)} runs" + (f", {len(runs)} kept" if runs else "")
        with rounds_bar(total, text) as tick:
            for job, events in compare(todo, options.cores, tick, work):
                runs[job.terms.run_id] = events
    return runs


def _setting(row: str | Setting) -> Setting:
    return row if isinstance(row, Setting) else Setting(row, {"strategy": row})


def select_or_all(names: Sequence[str], asked: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the requested names, or all if none is requested.

    Raises:
        TermsError: a requested name is unknown; ``option`` names it.
    """
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise TermsError(
            f"{option}: '{unknown[0]}' is not in this study; choose from {', '.join(names)}"
        )
    return tuple(asked or names)
