"""``hdpfl bench NAME``: weight rules, training alone and pooled records on natural federations.

Every rule has the rate of one grid with the least loss in the search, whose records are the
training ones alone; then three seeds are reported. A run whose sites' ledgers do not recount to
what was charged is not counted. A column (a federation at an ε) is finished before the next begins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError, TermsError
from server_app.plots import plot_differences
from server_app.simulation.comparison import RunJob
from studies.framework.kept_runs import finished_run, with_run_name
from studies.framework.study import (
    Findings,
    Options,
    Study,
    Table,
    run_jobs,
    select_or_all,
)
from studies.natural.federation import Split, inner_split, outer_split, write_split
from studies.natural.recount import keep_recounted
from studies.natural.scores import (
    Score,
    better_off_alone,
    constant_score,
    score_of_pooled,
    score_of_sites,
)
from studies.natural.tables import (
    ALONE,
    FEDAVG,
    POOLED,
    Cell,
    Place,
    board,
    columns_of,
    numbers,
    regret,
)

FIRST_SEED = 11
"""Of the reported runs; the search has seed 0."""
BATCHES = 4
"""Batches of a site's records in a round."""
BASE: Mapping[str, Any] = {
    "model": "logreg",
    "clip-norm": 1.0,
    "delta": 1e-4,
    "rounds": 20,
    "stack": True,
}
"""What every run has. Sites train together, which is faster."""
POOLED_DELTA = 1e-5
"""Of pooled records too many for the δ of the sites: a site's policy wants δ below 1 / records."""
BY_EPSILON = "weiavg"
"""The rule that is FedAvg where every site has the same ε."""


@dataclass(frozen=True, kw_only=True)
class NaturalStudy(Study):
    """A leaderboard.

    Attributes:
        federations: by name.
        epsilons: label → the simulated sites' ε, see ``draw_epsilons``.
        quick_epsilons: labels of those of the quick form.
        rules: label → run config keys; ``pooled`` is one site with all records.
        rates: the grid that each rule is searched over.
        base: run config keys of every run.
        seeds: of a cell.
    """

    federations: tuple[str, ...]
    epsilons: Mapping[str, str]
    quick_epsilons: tuple[str, ...]
    rules: Mapping[str, Mapping[str, Any]]
    rates: tuple[float, ...]
    base: Mapping[str, Any] = field(default_factory=lambda: BASE)
    seeds: int = 3

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Search the rates and run the rules, a column at a time; draw the differences."""
        started, notes, left = time.monotonic(), list[str](), list[str]()
        splits: dict[str, Split] = {}
        places = self.places(options)
        for name in dict.fromkeys(place.federation for place in places):
            try:
                splits[name] = outer_split(name, options.data_dir)
            except HDPFLError as reason:
                if options.columns:
                    raise
                notes.append(f"{name} was left out: {reason}")
        places = [place for place in places if place.federation in splits]
        cells: dict[Place, Cell] = {}
        for column in columns_of(places):
            here = [place for place in places if place.column == column]
            column_ = Column(self, here, splits[here[0].federation], options, folder)
            late = options.minutes and time.monotonic() - started > 60 * options.minutes
            if late and not column_.is_finished():
                left.append(column)
                continue
            cells |= column_.cells()
        if left:
            notes.append(f"Not run yet, for the next call with the same folder: {', '.join(left)}.")
        if not cells:
            raise TermsError("--minutes: no column is finished; call again with more of them")
        constants = {name: constant_score(splits[name]) for name in {p.federation for p in cells}}
        self._draw(cells, folder)
        tables = self.tables(cells, constants)
        return Findings(tables, numbers(cells, constants), (*self.notes, *notes))

    def tables(
        self, cells: Mapping[Place, Cell], constants: Mapping[str, Score]
    ) -> tuple[Table, ...]:
        """Return the tables of the cells."""
        return board(cells, constants)

    def _draw(self, cells: Mapping[Place, Cell], folder: Path) -> None:
        gaps = regret(cells, FEDAVG)
        shown = {
            rule: {p.column: (gap.mean, gap.error) for p, gap in gaps.items() if p.rule == rule}
            for rule in dict.fromkeys(place.rule for place in gaps)
        }
        path = folder / f"{self.name}.png"
        plot_differences({"": shown}, path, f"1000 × (loss − {FEDAVG}'s)", self.title)

    def places(self, options: Options) -> list[Place]:
        """Return every cell.

        Raises:
            TermsError: an option names what the study has not.
        """
        if options.model or options.dataset or options.noises:
            raise TermsError(
                "--model, --dataset and --noise: this study has its own; leave them out"
            )
        shown = tuple(self.epsilons) if options.full else self.quick_epsilons
        every = [(name, label) for name in self.federations for label in self.epsilons]
        known = [*self.federations, *(Place(name, label, "").column for name, label in every)]
        asked = select_or_all(known, options.columns or self.federations, "--columns")
        columns = [
            (name, label)
            for name, label in every
            if Place(name, label, "").column in asked or (name in asked and label in shown)
        ]
        return [
            Place(name, label, rule)
            for name, label in columns
            for rule in options.strategies or self.rules
            # Pooled records have one ε; by ε all weights are equal where the ε are.
            if (rule != POOLED or self.epsilons[label] == label)
            and (rule != BY_EPSILON or options.strategies or self.epsilons[label] != label)
        ]

    def config_of(self, rule: str) -> Mapping[str, Any]:
        """Return the run config keys of a rule: of the study's own, or any strategy's name."""
        return self.rules.get(rule, {"strategy": rule})


@dataclass(frozen=True)
class Column:
    """A federation at an ε: all rules.

    Attributes:
        study: whose it is.
        places: its cells.
        split: its records.
        options: of the call.
        folder: of the call; runs are kept in it.
    """

    study: NaturalStudy
    places: list[Place]
    split: Split
    options: Options
    folder: Path

    @cached_property
    def inner(self) -> tuple[Split, Mapping[str, Any]]:
        """The records of the search, written to a file, and the terms that name it."""
        name, split = self.places[0].federation, inner_split(self.split)
        return split, write_split(split, self.folder / f"{name}-search.npz")

    @property
    def grid(self) -> tuple[float, ...]:
        """The rates."""
        return self.options.learning_rates or self.study.rates

    def is_finished(self) -> bool:
        """Return whether every run is kept from earlier calls."""
        if any(finished_run(job) is None for job in self._search().values()):
            return False
        jobs = self._reported(self._rates())
        return all(finished_run(job) is not None for job in jobs.values())

    def cells(self) -> dict[Place, Cell]:
        """Run what is missing and return the cells."""
        title = f"{self.study.name}, {self.places[0].column}"
        run_jobs(list(self._search().values()), self.options, f"{title}, search", keep_recounted)
        rates = self._rates()
        jobs = self._reported(rates)
        run_jobs(list(jobs.values()), self.options, title, keep_recounted)
        cells = {}
        for place in self.places:
            alone = Place(place.federation, place.epsilon, ALONE)
            shares = [
                better_off_alone(_folder(jobs[alone, seed]), _folder(jobs[place, seed]))
                for seed in self.seeds
                if alone in rates and place.rule not in (ALONE, POOLED)
            ]
            scores = (_score(place, jobs[place, seed], self.split) for seed in self.seeds)
            rate = rates[place]
            edge = len(self.grid) > 1 and rate in (min(self.grid), max(self.grid))
            cells[place] = Cell(rate, tuple(scores), tuple(shares), edge, self.split.sites)
        return cells

    @property
    def seeds(self) -> range:
        """Of the reported runs."""
        return range(FIRST_SEED, FIRST_SEED + (self.options.seeds or self.study.seeds))

    def _search(self) -> dict[tuple[Place, float], RunJob]:
        split, terms = self.inner
        return {
            (place, rate): self.job(place, rate, 0, split, terms)
            for place in self.places
            for rate in self.grid
        }

    def _rates(self) -> dict[Place, float]:
        """Return the rate of each place, by the loss on training records that the search tests."""
        found: dict[Place, dict[float, float]] = {}
        for (place, rate), job in self._search().items():
            loss = _score(place, job, self.inner[0]).loss
            found.setdefault(place, {})[rate] = loss if math.isfinite(loss) else math.inf
        return {place: min(sorted(tried), key=tried.__getitem__) for place, tried in found.items()}

    def _reported(self, rates: Mapping[Place, float]) -> dict[tuple[Place, int], RunJob]:
        terms = {"dataset": self.places[0].federation}
        return {
            (place, seed): self.job(place, rates[place], seed, self.split, terms)
            for place in self.places
            for seed in self.seeds
        }

    def job(
        self, place: Place, rate: float, seed: int, split: Split, terms: Mapping[str, Any]
    ) -> RunJob:
        """Return a run of a cell; sites with too few records for their policy take no part."""
        pooled = place.rule == POOLED
        counts = np.array([len(split.train)]) if pooled else np.bincount(split.owners)
        batches = ":".join(str(max(1, round(int(count) / BATCHES))) for count in counts)
        config = {
            **self.study.base,
            **terms,
            **self.study.config_of(FEDAVG if pooled else place.rule),
            "partition": "iid" if pooled else "natural",
            "epsilons": self.study.epsilons[place.epsilon],
            "batch-sizes": f"each:{batches}",
            "learning-rate": rate,
            "seed": seed,
            "data-dir": self.options.data_dir,
            "runs-dir": str((self.folder / "runs").absolute()),
        }
        if pooled and len(split.train) >= 1 / config["delta"]:
            config["delta"] = POOLED_DELTA
        run = RunConfig.parse(config)
        stop = self.options.rounds if self.options.rounds < run.terms.rounds else 0
        # Of the whole federation's records: search and report have the same sites.
        of_sites = np.bincount(self.split.owners)
        small = np.flatnonzero(of_sites < self.options.fewest_records)
        absent = () if pooled else tuple(map(int, small))
        return with_run_name(RunJob(run, len(counts), stop, absent=absent))


def _score(place: Place, job: RunJob, split: Split) -> Score:
    if place.rule == POOLED:
        return score_of_pooled(_folder(job), split)
    return score_of_sites(_folder(job), split)


def _folder(job: RunJob) -> Path:
    return Path(job.config.server.runs_dir) / job.terms.run_id


LEADERBOARD = NaturalStudy(
    name="natural",
    title="Natural federations: log loss at the sites",
    source="ours (no paper); the data sets' sources: hdpfl bench --json",
    minutes=20,
    federations=("heart", "chem97", "dialysis", "randhie", "medpar", "opt"),
    epsilons={"0.3": "0.3", "1": "1", "3": "3", "0.3 to 8": "uniform:0.3:8"},
    quick_epsilons=("1", "0.3 to 8"),
    rules={
        ALONE: {"strategy": "local"},
        FEDAVG: {"strategy": "fedavg"},
        "fedavg by records": {"strategy": "fedavg", "fedavg.weights": "records"},
        BY_EPSILON: {"strategy": "weiavg"},
        "mmse": {"strategy": "mmse"},
        "robust-hdp": {"strategy": "robust-hdp"},
        "robust-hdp-drift": {"strategy": "robust-hdp-drift"},
        "mr-mtl": {"strategy": "mr-mtl"},
        POOLED: {"strategy": "fedavg"},
    },
    rates=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    notes=(
        "Loss and accuracy: over the test records, each under its site's model. AUROC, for "
        "survival the concordance, with its interval of 95 % over the test records, and the slope "
        "of the calibration: of the one model of all sites; where each has its own, the mean over "
        "their models, each on all records. Worst: mean loss of the worst tenth of the sites. "
        "Alone: share of the sites whose loss is less where each trains by itself (local), at the "
        "same ε and seed.",
        "− constant, − fedavg: of losses, in thousandths of a nat. The first is ± half an "
        "interval of 95 % over sites, of which the test records are a sample; the second ± a "
        "standard error over seeds. ≈: may be 0.",
        "constant: the training records' shares of the classes, or of events in each interval, "
        "without privacy. pooled: one site with all records, at the same ε, and at δ = 1e-5 where "
        "they are 10,000 or more.",
        "Each rule has the rate with the least loss with seed 0 on training records alone (* the "
        "edge of the grid); seeds reported begin at 11. Four batches a round, 20 rounds, C = 1, "
        "δ = 1e-4.",
        "Every run's ledgers were recounted: no plan costs more than its site was charged.",
    ),
)
