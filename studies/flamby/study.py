"""``hdpfl reproduce flamby-heart``: FLamby's table and its true ε.

With runs at the ε that it claims.

The procedure as published is trained many times at once (``procedure.py``); our rows are runs of
this product, a site for each hospital with a recounted ledger. Rates are searched only on training
records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdpfl_flower.config.run_config import RunConfig
from server_app.in_process.comparison import RunJob
from server_app.in_process.metrics_by_site import best_of, read_site_metrics
from server_app.run.final_measures import read_final_measures
from studies.flamby.canary import Found, audit
from studies.flamby.procedure import HONEST, PUBLISHED, SECRET_SEEDS, Recipe, train
from studies.flamby.records import (
    OTHER_SEED,
    PUBLIC,
    SITE,
    SPLIT_SEED,
    Hospital,
    read_hospitals,
    split_of,
)
from studies.flamby.scores import TestScores, constant_accuracy, joined, score_of_sites, scores_of
from studies.flamby.spent import DELTA, SIGMAS, honest_sigma, spent, unamplified_sigma
from studies.flamby.tables import NONE, AccuracyRow, above, accuracy_table, numbers_of, spent_table
from studies.framework.kept_runs import with_run_name
from studies.framework.plots import plot_differences
from studies.framework.study import Findings, Options, Study, run_jobs, select_or_all
from studies.natural.federation import Split, inner_split, write_split
from studies.natural.recount import keep_recounted
from studies.natural.scores import score_of_sites as natural_score

FIRST_SEED = 11
"""First seed of the reported runs; the search has seed 0."""
BASE: Mapping[str, Any] = {
    "model": "logreg",
    "clip-norm": 1.0,
    "delta": DELTA,
    "rounds": 40,
    "partition": "natural",
    "fedavg.weights": "records",
}
ELSEWHERE = "1"
"""ε of our runs on the other splits."""
PAPER: Mapping[str, float] = {"0.1": 0.606, "1": 0.685, "5": 0.704, "10": 0.700, NONE: 0.712}
"""FLamby's accuracies at δ = 1e-4 by nominal ε."""


@dataclass(frozen=True)
class Ours:
    """Row of this product's runs.

    ``elsewhere``: also run at ε = 1 on the other splits.
    """

    label: str
    strategy: str
    scaling: str
    elsewhere: bool = True


@dataclass(frozen=True)
class Theirs:
    """Row of the procedure.

    Attributes:
        label: in the table.
        recipe: batches and noise.
        scaling: of the features.
        noise: ``nominal``, ``sampled`` or ``unamplified``.
    """

    label: str
    recipe: Recipe
    scaling: str
    noise: str


AS_PUBLISHED = Theirs("as published, re-made: ε nominal", PUBLISHED, SITE, "nominal")
THEIRS = (
    AS_PUBLISHED,
    Theirs("the same, secret seeds: ε nominal", SECRET_SEEDS, SITE, "nominal"),
    Theirs("its batches, noise for its passes", SECRET_SEEDS, SITE, "unamplified"),
    Theirs("its recipe, Poisson-sampled", HONEST, SITE, "sampled"),
    Theirs("its recipe, Poisson-sampled, public bounds", HONEST, PUBLIC, "sampled"),
)
OURS = (
    Ours("FedAvg by records, public bounds", "fedavg", PUBLIC),
    Ours("FedAvg by records, own means", "fedavg", SITE, elsewhere=False),
    Ours("each hospital alone, public bounds", "local", PUBLIC),
)


@dataclass(frozen=True)
class FlambyPlace:
    """Place of one of our runs: row, ε label, split seed."""

    row: Ours
    epsilon: str
    split: int


@dataclass(frozen=True, kw_only=True)
class FlambyStudy(Study):
    """FLamby's table on Heart.

    Attributes:
        rates: the search grid of each of our rows, on each split.
        repeats: runs of the procedure on FLamby's split; one on each other.
        seeds: reported runs of ours on FLamby's split, and of the quick form.
        others: other splits, and of the quick form; a run of ours on each, at ε = 1.
        quick_epsilons: of the quick form.
    """

    takes = ("--seeds", "--columns", "--learning-rate")
    rates: tuple[float, ...]
    repeats: int = 100
    seeds: tuple[int, int] = (5, 3)
    others: tuple[int, int] = (30, 3)
    quick_epsilons: tuple[str, ...] = ("1",)

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Train the procedure, search and run our rows, draw accuracies."""
        epsilons = self.epsilons(options)
        hospitals = read_hospitals(options.data_dir)
        full = 0 if options.full else 1
        splits = [SPLIT_SEED, *range(OTHER_SEED, OTHER_SEED + self.others[full])]
        ours = self.ours(hospitals, epsilons, splits, options, folder)
        rows = [
            AccuracyRow("published", {e: (PAPER[e], None) for e in (*epsilons, NONE)}),
            *(self.theirs(one, hospitals, epsilons, splits) for one in THEIRS),
            *ours,
            self.constant(hospitals, epsilons, splits),
        ]
        costs = {
            e: [
                spent(n, sigma, float(e))
                for n, sigma in zip(_trained(hospitals), SIGMAS[e], strict=True)
            ]
            for e in epsilons
        }
        found = audit(split_of(hospitals, SPLIT_SEED, SITE))
        path = folder / f"{self.name}.png"
        constant = rows[-1]
        shown = {
            f"ε {epsilon}": {
                row.label: above(row, constant, epsilon) for row in rows if row is not constant
            }
            for epsilon in epsilons
        }
        text = "accuracy less the constant predictor's, points, ± sd"
        plot_differences({"": shown}, path, text, self.title)
        tables = (
            *(spent_table(e, costs[e]) for e in epsilons),
            accuracy_table(rows, epsilons),
        )
        facts = (_canary_fact(found),)
        return Findings(tables, numbers_of(rows, costs), (*self.notes, *facts))

    def epsilons(self, options: Options) -> tuple[str, ...]:
        """Return the labels of the ε to run.

        Raises:
            TermsError: an option names an entry that the study lacks.
        """
        shown = tuple(SIGMAS) if options.full else self.quick_epsilons
        return select_or_all(tuple(SIGMAS), options.columns or shown, "--columns")

    def theirs(
        self,
        one: Theirs,
        hospitals: list[Hospital],
        epsilons: Sequence[str],
        splits: Sequence[int],
    ) -> AccuracyRow:
        """Return a row of the procedure; without noise only as published."""
        cells: dict[str, tuple[TestScores | float, TestScores | float | None]] = {}
        for epsilon in (*epsilons, *((NONE,) if one is AS_PUBLISHED else ())):
            sigmas = _sigmas(one.noise, epsilon, _trained(hospitals))

            def run(seed: int, runs: int, sigmas: Sequence[float] = sigmas) -> TestScores:
                split = split_of(hospitals, seed, one.scaling)
                return scores_of(train(split, sigmas, one.recipe, runs, FIRST_SEED + seed), split)

            elsewhere = joined([run(seed, 1) for seed in splits[1:]])
            cells[epsilon] = (run(SPLIT_SEED, self.repeats), elsewhere)
        return AccuracyRow(one.label, cells)

    def ours(
        self,
        hospitals: list[Hospital],
        epsilons: Sequence[str],
        splits: Sequence[int],
        options: Options,
        folder: Path,
    ) -> list[AccuracyRow]:
        """Return our rows: search rates on each split's training records, then run."""
        outer = {(seed, scaling): split_of(hospitals, seed, scaling)
                 for seed in splits for scaling in (SITE, PUBLIC)}  # fmt: skip
        places = [
            FlambyPlace(row, epsilon, seed)
            for seed in splits
            for row in OURS
            for epsilon in epsilons
            if seed == SPLIT_SEED or (row.elsewhere and epsilon == ELSEWHERE)
        ]
        rates = self.search(places, outer, options, folder)
        seeds = options.seeds or self.seeds[0 if options.full else 1]
        jobs: dict[tuple[FlambyPlace, int], RunJob] = {}
        for place in places:
            split = outer[place.split, place.row.scaling]
            terms = write_split(split, folder / f"{place.split}-{place.row.scaling}.npz")
            for seed in range(seeds if place.split == SPLIT_SEED else 1):
                jobs[place, seed] = self.job(
                    place, rates[place], FIRST_SEED + seed, split, terms, folder
                )
        run_jobs(list(jobs.values()), options, self.name, keep_recounted)
        scores: dict[FlambyPlace, list[TestScores]] = {}
        for (place, _), job in jobs.items():
            scores.setdefault(place, []).append(_score(place, job))

        def cell(row: Ours, epsilon: str) -> tuple[TestScores, TestScores | None]:
            own, *others = (
                joined(scores[place])
                for seed in splits
                if (place := FlambyPlace(row, epsilon, seed)) in scores
            )
            return own, joined(others) if others else None

        return [AccuracyRow(row.label, {e: cell(row, e) for e in epsilons}) for row in OURS]

    def search(
        self,
        places: Sequence[FlambyPlace],
        outer: Mapping[tuple[int, str], Split],
        options: Options,
        folder: Path,
    ) -> dict[FlambyPlace, float]:
        """Return each place's rate by least loss on every fifth training record."""
        grid = options.learning_rates or self.rates
        jobs: dict[tuple[FlambyPlace, float], RunJob] = {}
        splits: dict[FlambyPlace, Split] = {}
        for place in places:
            splits[place] = inner_split(outer[place.split, place.row.scaling])
            path = folder / f"{place.split}-{place.row.scaling}-search.npz"
            terms = write_split(splits[place], path)
            for rate in grid:
                jobs[place, rate] = self.job(place, rate, 0, splits[place], terms, folder)
        run_jobs(list(jobs.values()), options, f"{self.name}, search", keep_recounted)
        found: dict[FlambyPlace, dict[float, float]] = {}
        for (place, rate), job in jobs.items():
            loss = natural_score(_folder(job), splits[place]).loss
            found.setdefault(place, {})[rate] = loss if math.isfinite(loss) else math.inf
        return {place: min(sorted(tried), key=tried.__getitem__) for place, tried in found.items()}

    def job(
        self,
        place: FlambyPlace,
        rate: float,
        seed: int,
        split: Split,
        terms: Mapping[str, Any],
        folder: Path,
    ) -> RunJob:
        """Return a run: 40 rounds, each one step on all records."""
        counts = np.bincount(split.owners)
        config = {
            **BASE,
            **terms,
            "strategy": place.row.strategy,
            "epsilons": place.epsilon,
            "batch-sizes": "each:" + ":".join(str(count) for count in counts),
            "learning-rate": rate,
            "seed": seed,
            "runs-dir": str((folder / "runs").absolute()),
        }
        if place.row.strategy != "fedavg":
            del config["fedavg.weights"]
        return with_run_name(RunJob(RunConfig.parse(config), len(counts)))

    def constant(
        self, hospitals: list[Hospital], epsilons: Sequence[str], splits: Sequence[int]
    ) -> AccuracyRow:
        """Return the row of each hospital's majority label."""
        own, *others = (constant_accuracy(split_of(hospitals, s, PUBLIC)) for s in splits)
        elsewhere = float(np.mean(others)) if others else math.nan
        return AccuracyRow(
            "constant of each hospital, no privacy", {e: (own, elsewhere) for e in epsilons}
        )


def _canary_fact(found: Found) -> str:
    return (
        f"Canary at Switzerland, noise of nominal ε = 1 from a secret seed, {found.trials} trials "
        f"of a server that sends the same model every round: ε ≥ {found.bound:.1f} at 95 %, "
        f"δ = {DELTA:g}."
    )


def _sigmas(noise: str, epsilon: str, records: Sequence[int]) -> tuple[float, ...]:
    if epsilon == NONE:
        return (0.0,) * len(records)
    if noise == "nominal":
        return SIGMAS[epsilon]
    find = honest_sigma if noise == "sampled" else unamplified_sigma
    return tuple(find(n, float(epsilon)) for n in records)


def _trained(hospitals: list[Hospital]) -> list[int]:
    split = split_of(hospitals, SPLIT_SEED, PUBLIC)
    return [int(n) for n in np.bincount(split.owners)]


def _score(place: FlambyPlace, job: RunJob) -> TestScores:
    folder = _folder(job)
    measures = read_final_measures(folder).get("measures", {})
    area = float(measures.get("auroc", {}).get("value", math.nan))
    accuracies = best_of(read_site_metrics(folder), "accuracy")
    return score_of_sites(accuracies, math.nan if place.row.strategy == "local" else area)


def _folder(job: RunJob) -> Path:
    return Path(job.config.server.runs_dir) / job.terms.run_id


FLAMBY = FlambyStudy(
    name="flamby-heart",
    title="FLamby's four heart hospitals: accuracy by ε",
    source="du Terrail et al., FLamby (NeurIPS 2022), its table of differential privacy on Heart",
    minutes=3,
    rates=(0.03, 0.1, 0.3, 1.0),
    notes=(
        "Accuracy: the mean of the four hospitals' accuracies, as FLamby's; one of the 16 patients "
        "tested at Switzerland is 1.6 points. No difference under 3 points is called one. AUROC: "
        "of one model over all 254 test records.",
        "steps accounted: the Poisson-sampled steps of 15 passes, for which Opacus (PRV) finds σ. "
        "taken: 15 rounds of 100, on batches of shuffled passes; the private loader is built and "
        "not used.",
        "ε if Poisson: PLD of the steps taken under the sampling accounted, which is optimistic. "
        "ε bound: PLD of a Gaussian release for each pass that a record is in, without "
        "amplification. Both of noise that is secret, for one record's gradient in place of zero; "
        "each hospital's own means and deviations are in neither.",
        "as published: nominal ε, noise of all hospitals from one seed. Rows below it without "
        "'nominal' are at the ε of their column: 'noise for its passes' without amplification, "
        "'Poisson-sampled' by PLD for 1,500 steps; scaled by own means unless the row says "
        "public bounds.",
        "FedAvg and each hospital alone: runs of this product, whose ledgers were recounted; 40 "
        "rounds of one step on all records, C = 1, the rate with the least loss on every fifth "
        "training record of the same split. Public bounds: all 13 features to [-1, 1] by the "
        "schema heart.",
    ),
)
