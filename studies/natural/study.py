"""``hdpfl bench NAME``: weight rules, training alone and pooled records on natural federations.

Every rule has the rate of one grid with the least loss in the search, whose records are the
training ones alone; then three seeds are reported. A run whose sites' ledgers do not recount to
what was charged is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError, TermsError
from server_app.plots import plot_differences
from server_app.simulation.comparison import RunJob
from studies.framework.kept_runs import with_run_name
from studies.framework.study import Findings, Options, Study, run_jobs, select_or_all
from studies.natural.federation import Split, inner_split, outer_split, write_split
from studies.natural.recount import keep_recounted
from studies.natural.scores import (
    Score,
    better_off_alone,
    constant_score,
    score_of_pooled,
    score_of_sites,
)
from studies.natural.tables import Cell, board, numbers, regret

FIRST_SEED = 11
"""Of the reported runs; the search has seed 0."""
ALONE, POOLED, FEDAVG = "local", "pooled", "fedavg"
BATCHES = 4
"""Batches of a site's records in a round."""
BASE: Mapping[str, Any] = {
    "model": "logreg",
    "clip-norm": 1.0,
    "delta": 1e-4,
    "rounds": 20,
}


@dataclass(frozen=True)
class Place:
    """A cell: federation, ε by its label, rule."""

    federation: str
    epsilon: str
    rule: str

    @property
    def column(self) -> str:
        """What ``--columns`` names."""
        return f"{self.federation} ε {self.epsilon}"


@dataclass(frozen=True, kw_only=True)
class NaturalStudy(Study):
    """A leaderboard.

    Attributes:
        federations: by name.
        epsilons: label → the simulated sites' ε, see ``draw_epsilons``.
        quick_epsilons: labels of those of the quick form.
        rules: strategies; ``pooled`` is one site with all records.
        rates: the grid that each rule is searched over.
        seeds: of a cell.
    """

    federations: tuple[str, ...]
    epsilons: Mapping[str, str]
    quick_epsilons: tuple[str, ...]
    rules: tuple[str, ...]
    rates: tuple[float, ...]
    seeds: int = 3

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Search the rates, run the rules, draw the differences to FedAvg."""
        notes, splits = [], {}
        for name in dict.fromkeys(place.federation for place in self.places(options)):
            try:
                splits[name] = outer_split(name, options.data_dir)
            except HDPFLError as reason:
                if options.columns:
                    raise
                notes.append(f"{name} was left out: {reason}")
        places = [place for place in self.places(options) if place.federation in splits]
        rates = self.search(places, splits, options, folder)
        cells = self.report(places, rates, splits, options, folder)
        constants = {name: constant_score(split) for name, split in splits.items()}
        shown = {
            rule: {
                place.column: (gap.mean, gap.error)
                for place, gap in regret(cells, FEDAVG).items()
                if place.rule == rule
            }
            for rule in self.rules
            if rule != FEDAVG
        }
        path = folder / f"{self.name}.png"
        plot_differences({"": shown}, path, f"1000 × (loss − {FEDAVG}'s)", self.title)
        tables = board(cells, constants, FEDAVG)
        return Findings(tables, numbers(cells, constants), (*self.notes, *notes))

    def places(self, options: Options) -> list[Place]:
        """Return every cell.

        Raises:
            TermsError: an option names what the study has not.
        """
        if options.model or options.dataset or options.noises:
            raise TermsError(
                "--model, --dataset and --noise: this study has its own; leave them out"
            )
        rules = select_or_all(self.rules, options.strategies, "--strategies")
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
            for rule in rules
            # Pooled records have one ε.
            if rule != POOLED or self.epsilons[label] == label
        ]

    def search(
        self, places: list[Place], splits: Mapping[str, Split], options: Options, folder: Path
    ) -> dict[Place, float]:
        """Return the rate of each place, by the loss on training records that the search tests."""
        grid = options.learning_rates or self.rates
        inner, terms = {}, {}
        for name, split in splits.items():
            inner[name] = inner_split(split)
            terms[name] = write_split(inner[name], folder / f"{name}-search.npz")
        jobs = {
            (place, rate): self.job(place, rate, 0, inner[place.federation], options, folder,
                                    terms[place.federation])
            for place in places
            for rate in grid
        }  # fmt: skip
        run_jobs(list(jobs.values()), options, f"{self.name}, search", keep_recounted)
        found: dict[Place, dict[float, float]] = {}
        for (place, rate), job in jobs.items():
            loss = self._score(place, job, inner[place.federation]).loss
            found.setdefault(place, {})[rate] = loss if math.isfinite(loss) else math.inf
        return {place: min(sorted(tried), key=tried.__getitem__) for place, tried in found.items()}

    def report(
        self,
        places: list[Place],
        rates: Mapping[Place, float],
        splits: Mapping[str, Split],
        options: Options,
        folder: Path,
    ) -> dict[Place, Cell]:
        """Return the cells of the reported runs."""
        seeds = range(FIRST_SEED, FIRST_SEED + (options.seeds or self.seeds))
        jobs = {
            (place, seed): self.job(place, rates[place], seed, splits[place.federation], options,
                                    folder, {"dataset": place.federation})
            for place in places
            for seed in seeds
        }  # fmt: skip
        run_jobs(list(jobs.values()), options, self.name, keep_recounted)
        cells = {}
        for place in places:
            of_seeds = [jobs[place, seed] for seed in seeds]
            alone = Place(place.federation, place.epsilon, ALONE)
            shares = [
                better_off_alone(_folder(jobs[alone, seed]), _folder(jobs[place, seed]))
                for seed in seeds
                if alone in rates and place.rule not in (ALONE, POOLED)
            ]
            scores = tuple(self._score(place, job, splits[place.federation]) for job in of_seeds)
            cells[place] = Cell(rates[place], scores, tuple(shares))
        return cells

    def job(
        self,
        place: Place,
        rate: float,
        seed: int,
        split: Split,
        options: Options,
        folder: Path,
        terms: Mapping[str, Any],
    ) -> RunJob:
        """Return a run of a cell."""
        pooled = place.rule == POOLED
        counts = np.array([len(split.train)]) if pooled else np.bincount(split.owners)
        batches = ":".join(str(max(1, round(int(count) / BATCHES))) for count in counts)
        config = {
            **BASE,
            **terms,
            "strategy": FEDAVG if pooled else place.rule,
            "partition": "iid" if pooled else "natural",
            "epsilons": self.epsilons[place.epsilon],
            "batch-sizes": f"each:{batches}",
            "learning-rate": rate,
            "seed": seed,
            "data-dir": options.data_dir,
            "runs-dir": str((folder / "runs").absolute()),
        }
        run = RunConfig.parse(config)
        stop = options.rounds if options.rounds < run.terms.rounds else 0
        return with_run_name(RunJob(run, len(counts), stop))

    def _score(self, place: Place, job: RunJob, split: Split) -> Score:
        if place.rule == POOLED:
            return score_of_pooled(_folder(job))
        return score_of_sites(_folder(job), split, one_model=place.rule != ALONE)


def _folder(job: RunJob) -> Path:
    return Path(job.config.server.runs_dir) / job.terms.run_id


LEADERBOARD = NaturalStudy(
    name="natural",
    title="Natural federations: log loss at the sites",
    source="ours (no paper); the data sets' sources: hdpfl bench --json",
    minutes=30,
    federations=("heart", "chem97", "randhie", "medpar", "opt"),
    epsilons={"0.3": "0.3", "1": "1", "3": "3", "0.3 to 8": "uniform:0.3:8"},
    quick_epsilons=("1", "0.3 to 8"),
    rules=(ALONE, FEDAVG, "weiavg", "mmse", "robust-hdp", "robust-hdp-drift", POOLED),
    rates=(0.1, 0.3, 1.0, 3.0),
    notes=(
        "Loss and accuracy: over the test records, each under its site's model. AUROC: of the one "
        "model of all sites. Worst: mean loss of the worst tenth of the sites. Alone: share of the "
        "sites whose loss is less where each trains by itself (local), at the same ε and seed.",
        "constant: the training records' shares of the classes, without privacy. pooled: one site "
        "with all records, at the same ε.",
        "Each rule has the rate with the least loss with seed 0 on training records alone; seeds "
        "reported begin at 11. Four batches a round, 20 rounds, C = 1, δ = 1e-4.",
        "Every run's ledgers were recounted: no plan costs more than its site was charged.",
    ),
)
