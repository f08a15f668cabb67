"""Expected worth of a site's records alone under (ε, δ): a simulation.

The site trains by DP-SGD at home as the run's plan says, steps, clipping and noise, several times
with made-up randomness, and never mixes its model with another one's. What a run of many sites
reaches is more than that where their records help. The result is shown at the site alone: nothing
is released, so nothing is charged, and nothing is written. The noise comes from a known seed and
gives no protection: shown figures tell something of the records.

Each record is predicted by models trained on the other folds, as home model and constant are: a
simulation has a fold fewer records than the run would have, so that its noise weighs a little more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from client_app.training.dpsgd import train
from client_app.training.engine_choice import engine_for
from client_app.worth.candidates import HOME, Outputs
from client_app.worth.comparison import ModelComparison, compare
from client_app.worth.home_model import HomeTraining, Tick, folds_of, home_pieces
from client_app.worth.judgement import (
    Progress,
    Question,
    home_training,
    measure_for,
    out_of_fold,
    scores_of,
)
from client_app.worth.scores import Scored, scored
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.site_data import UnitRecords, read_unit_records
from hdpfl_flower.errors import DataError, ProfileError, TermsError
from hdpfl_flower.measures.bootstrap import Floats
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import flatten, unflatten
from hdpfl_flower.models.task import Records
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan

ALONE = "alone, with this noise"
"""Name of the simulation."""
SEEDS = 3
TELLING = 0.98
"""AUROC at home above which a feature is taken for the outcome."""


@dataclass(frozen=True)
class Expectation:
    """Expectation of a site from its own records.

    Attributes:
        found: constant, home model and :data:`ALONE`, whose figures are means over the seeds.
        spread: standard deviation of its deciding measure from seed to seed.
        seeds: their number.
    """

    found: ModelComparison
    spread: float
    seeds: int


@dataclass(frozen=True, repr=False)
class _Mean(Scored):
    """Scores of several models as one: each measure is the mean of theirs."""

    models: tuple[Scored, ...] = ()

    @classmethod
    def of(cls, models: list[Scored]) -> _Mean:
        first = models[0]
        by_record = {
            name: np.mean([one.by_record[name] for one in models], axis=0)
            for name in first.by_record
        }
        return cls(by_record, first.ranks, first.targets, first.concordance, tuple(models))

    def measures(self, weights: Floats) -> dict[str, Floats]:
        each = [one.measures(weights) for one in self.models]
        return {name: np.mean([found[name] for found in each], axis=0) for name in each[0]}


def expect(
    site: Profile, terms: RunTerms, plan: Plan, question: Question, progress: Progress
) -> Expectation:
    """Return the expected scores of a site alone under ``plan``.

    Args:
        site: the profile.
        terms: of the run.
        plan: of the run at this site.
        question: folds, seed, measure and confidence.
        progress: shows the work.

    Guarantees:
        Reads the records and writes nothing: no ledger is opened. Held-out records are left alone.

    Raises:
        ProfileError: the profile names no records.
        TermsError: the run's noise is not that of steps over records.
        DataError: there are not two units to train and test on.
    """
    if terms.noise != "records":
        raise TermsError("'--terms' is for runs that noise steps over records: 'noise' = records")
    if site.data is None:
        raise ProfileError("profile: [data] is missing; say where the site's records lie")
    task = task_for(terms)
    measure = measure_for(task, question.measure)
    every = _trained_on(read_unit_records(site.data, task, terms.schema_text))
    if len(np.unique(every.units)) < 2:
        raise DataError("an expectation needs records of two units at least")
    home = home_training(site, terms, task, question)
    with progress("home model", question.folds * home_pieces(home)) as tick:
        known = out_of_fold(home, every, question.folds, tick)
    with progress("with noise", question.folds * SEEDS) as tick:
        noisy = [
            _simulated(site, terms, plan, home, every, question.folds, seed, tick)
            for seed in range(question.seed, question.seed + SEEDS)
        ]
    models = scores_of(task, known, every.records)
    alone = [scored(task, outputs, every.records, ALONE) for outputs in noisy]
    models[ALONE] = ("none", _Mean.of(alone))
    found = compare(models, every.units, measure, question.confidence, question.seed)
    once = np.ones((1, len(every.units)))
    spread = float(np.std([one.measures(once)[measure] for one in alone], ddof=1))
    return Expectation(found, spread, SEEDS)


def in_words(expectation: Expectation) -> str:
    """Return a sentence on the gain over the constant."""
    models = {one.name: one for one in expectation.found.models}
    auroc = models[HOME].measures.get("auroc") if HOME in models else None
    if auroc is not None and auroc.value > TELLING:
        return (
            "no conclusion: at home the features predict the label too well (AUROC "
            f"{auroc.value:.3f}): one may hold the outcome; see hdpfl-site profile check"
        )
    gain = models[ALONE].gains["constant"]
    if gain.above:
        return "alone, this site's records would beat the constant under this (ε, δ)"
    if gain.below:
        return "alone, under this (ε, δ) the noise would leave less than the constant has"
    return "alone, under this (ε, δ), so few records cannot be told from the constant"


def _trained_on(every: UnitRecords) -> UnitRecords:
    """Return the records that are not held out."""
    rows: npt.NDArray[np.int64] = np.flatnonzero(~every.held_out)
    return replace(
        every,
        records=every.records.take(rows),
        units=every.units[rows],
        first=every.first[rows],
        held_out=every.held_out[rows],
        copies=every.copies[rows],
    )


def _simulated(  # noqa: PLR0913, PLR0917 - one call
    site: Profile,
    terms: RunTerms,
    plan: Plan,
    home: HomeTraining,
    every: UnitRecords,
    folds: int,
    seed: int,
    tick: Tick,
) -> Outputs:
    """Return out-of-fold outputs of DP-SGD, shape ``(n, outputs)``."""
    fold, records = folds_of(every.copies, folds, home.seed), every.records
    outputs = np.empty((len(records), home.task.outputs), np.float32)
    for number in range(int(fold.max()) + 1):
        rows, test = np.flatnonzero((fold != number) & every.first), np.flatnonzero(fold == number)
        end = _run_alone(site, terms, plan, home, records.take(rows), f"{seed}, fold {number}")
        arrays = unflatten(end, home.layout)
        outputs[test] = predict(home.spec, home.task, arrays, records.features[test])
        tick()
    return outputs


def _run_alone(
    site: Profile,
    terms: RunTerms,
    plan: Plan,
    home: HomeTraining,
    records: Records,
    name: str,
) -> npt.NDArray[np.float32]:
    """Return the parameters after all rounds of the plan, shape ``(d,)``."""
    training, theta = site.training, flatten(home.layout)
    engine = engine_for(home.spec, home.task, training.engine, home.device)
    for server_round in range(1, plan.rounds + 1):
        theta = theta + train(
            engine,
            theta,
            records,
            plan.round(server_round, terms.clip_norm),
            terms.learning_rate,
            # Of a simulation: reproducible, released nowhere, and shared with no release.
            ReleaseStreams.simulated(home.seed, f"expectation {name}", server_round, "expect"),
            training.physical_batch,
        )
    return theta
