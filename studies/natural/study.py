"""``hdpfl reproduce natural``: strategies on natural federations, against baselines.

Every strategy has the rate of one grid with the least loss in the search, on training
records only; then three seeds are reported. A run whose sites' ledgers do not recount to
their charge is not counted. A column (a federation at an ε) is finished before the next begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError
from server_app.in_process.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.plots import plot_differences
from studies.framework.study import (
    OF_RUNS,
    Findings,
    Options,
    Study,
    Table,
    run_jobs,
    select_or_all,
)
from studies.natural.federation import DEALT, Split, inner_split, outer_split, write_split
from studies.natural.federations.catalog import FEDERATIONS
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
    NaturalPlace,
    board,
    columns_of,
    numbers,
    regret,
)

FIRST_SEED = 11
"""First seed of the reported runs; the search has seed 0."""
BATCHES = 4
"""Batches of a site's records in a round."""
BASE: Mapping[str, Any] = {
    "model": "logreg",
    "clip-norm": 1.0,
    "delta": 1e-4,
    "rounds": 20,
    "stack": True,
}
"""Run config keys of every run; sites train together for speed."""
POOLED_DELTA = 1e-5
"""δ for many pooled records: a policy requires δ below 1/records."""
BY_EPSILON = "weiavg"
"""Strategy equal to FedAvg if every site has the same ε."""


@dataclass(frozen=True, kw_only=True)
class NaturalStudy(Study):
    """Leaderboard of strategies.

    Attributes:
        federations: by name.
        epsilons: label → the simulated sites' ε, see ``draw_epsilons``.
        quick_epsilons: labels of those of the quick form.
        rules: label → run config keys; ``pooled`` is one site with all records.
        rates: the search grid of each strategy.
        grids: column → its own grid.
        base: run config keys of every run.
        seeds: of a cell.
    """

    takes = OF_RUNS
    federations: tuple[str, ...]
    epsilons: Mapping[str, str]
    quick_epsilons: tuple[str, ...]
    rules: Mapping[str, Mapping[str, Any]]
    rates: tuple[float, ...]
    grids: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=lambda: BASE)
    seeds: int = 3

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Search rates and run strategies by column; draw the differences."""
        notes = list[str]()
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
        cells: dict[NaturalPlace, Cell] = {}
        for column in columns_of(places):
            here = [place for place in places if place.column == column]
            cells |= FederationColumn(
                self, here, splits[here[0].federation], options, folder
            ).cells()
        constants = {name: constant_score(splits[name]) for name in {p.federation for p in cells}}
        self._draw(cells, folder)
        tables = self.tables(cells, constants)
        return Findings(tables, numbers(cells, constants), (*self.notes, *notes))

    def tables(
        self, cells: Mapping[NaturalPlace, Cell], constants: Mapping[str, Score]
    ) -> tuple[Table, ...]:
        """Return the tables of the cells."""
        return board(cells, constants)

    def _draw(self, cells: Mapping[NaturalPlace, Cell], folder: Path) -> None:
        gaps = regret(cells, FEDAVG)
        shown = {
            rule: {p.column: (gap.mean, gap.error) for p, gap in gaps.items() if p.rule == rule}
            for rule in dict.fromkeys(place.rule for place in gaps)
        }
        path = folder / f"{self.name}.png"
        plot_differences({"": shown}, path, f"1000 × (loss − {FEDAVG}'s)", self.title)

    def places(self, options: Options) -> list[NaturalPlace]:
        """Return all cells.

        Raises:
            TermsError: an option names an entry that the study lacks.
        """
        shown = tuple(self.epsilons) if options.full else self.quick_epsilons
        every = [(name, label) for name in self.federations for label in self.epsilons]
        known = [
            *self.federations,
            *(NaturalPlace(name, label, "").column for name, label in every),
        ]
        asked = select_or_all(known, options.columns or self.federations, "--columns")
        columns = dict.fromkeys(
            (name, label)
            for one in asked
            for name, label in every
            if one == NaturalPlace(name, label, "").column or (one == name and label in shown)
        )
        return [
            NaturalPlace(name, label, rule)
            for name, label in columns
            for rule in options.strategies or self.rules
            # Pooled records have one ε; weights by ε are equal if all ε are.
            if (rule != POOLED or self.epsilons[label] == label)
            and (rule != BY_EPSILON or options.strategies or self.epsilons[label] != label)
        ]

    def config_of(self, rule: str) -> Mapping[str, Any]:
        """Return the run config keys of a study's or any strategy."""
        return self.rules.get(rule, {"strategy": rule})


@dataclass(frozen=True)
class FederationColumn:
    """Federation at an ε, with all strategies.

    Attributes:
        study: its study.
        places: its cells.
        split: its records.
        options: of the call.
        folder: of the call; runs are kept in it.
    """

    study: NaturalStudy
    places: list[NaturalPlace]
    split: Split
    options: Options
    folder: Path

    @cached_property
    def inner(self) -> tuple[Split, Mapping[str, Any]]:
        """Records of the search, written to a file, and their terms."""
        name, split = self.places[0].federation, inner_split(self.split)
        return split, write_split(split, self.folder / f"{name}-search.npz")

    @property
    def grid(self) -> tuple[float, ...]:
        """Learning rates of the grid."""
        column = self.places[0].column
        return self.options.learning_rates or self.study.grids.get(column, self.study.rates)

    def cells(self) -> dict[NaturalPlace, Cell]:
        """Run missing jobs and return the cells."""
        title = f"{self.study.name}, {self.places[0].column}"
        run_jobs(list(self._search().values()), self.options, f"{title}, search", keep_recounted)
        rates = self._rates()
        jobs = self._reported(rates)
        run_jobs(list(jobs.values()), self.options, title, keep_recounted)
        cells = {}
        for place in self.places:
            alone = NaturalPlace(place.federation, place.epsilon, ALONE)
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
        """Seeds of the reported runs."""
        return range(FIRST_SEED, FIRST_SEED + (self.options.seeds or self.study.seeds))

    def _search(self) -> dict[tuple[NaturalPlace, float], RunJob]:
        split, terms = self.inner
        return {
            (place, rate): self.job(place, rate, 0, split, terms)
            for place in self.places
            for rate in self.grid
        }

    def _rates(self) -> dict[NaturalPlace, float]:
        """Return each place's rate by loss on the search's test records."""
        found: dict[NaturalPlace, dict[float, float]] = {}
        for (place, rate), job in self._search().items():
            loss = _score(place, job, self.inner[0]).loss
            found.setdefault(place, {})[rate] = loss if math.isfinite(loss) else math.inf
        return {place: min(sorted(tried), key=tried.__getitem__) for place, tried in found.items()}

    def _reported(
        self, rates: Mapping[NaturalPlace, float]
    ) -> dict[tuple[NaturalPlace, int], RunJob]:
        name = self.places[0].federation
        terms: Mapping[str, Any] = {"dataset": name}
        if name in FEDERATIONS or name in DEALT:  # no data set of the product has these sites
            terms = write_split(self.split, self.folder / f"{name}.npz")
        return {
            (place, seed): self.job(place, rates[place], seed, self.split, terms)
            for place in self.places
            for seed in self.seeds
        }

    def job(
        self, place: NaturalPlace, rate: float, seed: int, split: Split, terms: Mapping[str, Any]
    ) -> RunJob:
        """Return a run of a cell."""
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
        return with_run_name(RunJob(run, len(counts), stop))


def _score(place: NaturalPlace, job: RunJob, split: Split) -> Score:
    if place.rule == POOLED:
        return score_of_pooled(_folder(job), split)
    return score_of_sites(_folder(job), split)


def _folder(job: RunJob) -> Path:
    return Path(job.config.server.runs_dir) / job.terms.run_id


LEADERBOARD = NaturalStudy(
    name="natural",
    title="Natural federations: log loss at the sites",
    source="ours (no paper); the data sets' sources: studies/natural/federations/catalog.py",
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
