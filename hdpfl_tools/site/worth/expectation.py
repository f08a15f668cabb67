"""Expected worth of a site's records alone under (ε, δ): a simulation.

The site trains by DP-SGD at home as the run's plan says, steps, clipping and noise, several times
with made-up randomness, and never mixes its model with another one's. A run of many sites
reaches more where their records help. The result is shown at the site alone: nothing
is released, so nothing is charged, and nothing is written. The noise comes from a known seed and
gives no protection: shown figures tell something of the records.

Each record is predicted by models trained on the other folds, as home model and constant are: a
simulation has a fold fewer records than the run would have, so that its noise weighs a little more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from client_app.training.trainer import use_threads
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines.dpsgd import train
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.errors import DataError, ProfileError, TermsError
from hdpfl_flower.models.evaluation import predict
from hdpfl_flower.models.networks import arrays_of, build_model, flatten, size_of, unflatten
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import Plan
from hdpfl_flower.system.devices import available_cores, pick_device
from hdpfl_tools.measures.clinical import Statistic
from hdpfl_tools.site.worth.candidates import HOME, Predict
from hdpfl_tools.site.worth.comparison import ModelComparison, Question, compare, statistic_of
from hdpfl_tools.site.worth.home_model import HomeTraining, out_of_fold, references
from hdpfl_tools.site.worth.judgement import Progress
from hdpfl_tools.tables.site_data import UnitRecords, read_unit_records

ALONE = "without other sites, with this noise"
"""Name of the simulation."""
SEEDS = 3
TELLING = 0.98
"""AUROC at home above which a feature is taken for the outcome."""
_SMALL = 100_000
"""Parameters below which one thread trains faster than several."""


@dataclass(frozen=True)
class Expectation:
    """Expectation of a site from its own records.

    Attributes:
        comparison: of constant, home model and :data:`ALONE`, a mean over the seeds.
        spread: standard deviation of its deciding measure from seed to seed.
        seeds: their number.
    """

    comparison: ModelComparison
    spread: float
    seeds: int


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
    if not terms.source.own_noise:
        raise TermsError(
            "'--terms' is only for runs that add noise to steps over records: 'noise' = records"
        )
    if site.data is None:
        raise ProfileError("profile: [data] is missing; say where the site's records lie")
    task = task_for(terms)
    measure = question.measure_for(task)
    every = _trained_on(read_unit_records(site.data, task, terms.schema_text))
    if len(np.unique(every.units)) < 2:
        raise DataError("an expectation needs records of at least two units")
    home, folds = HomeTraining(terms.model, task, question.seed), question.folds
    with progress(HOME, folds * home.fits) as tick:
        models = references(home, every, folds, tick)
    alone = []
    with progress("with noise", folds * SEEDS) as tick:
        for seed in range(question.seed, question.seed + SEEDS):

            def simulate(
                records: Records, _: npt.NDArray[np.int64], fold: int, seed: int = seed
            ) -> Predict:
                tick()
                name = f"expectation {seed}, fold {fold}"
                return _run_alone(site, terms, plan, task, records, name, question.seed)

            outputs = out_of_fold(every, folds, question.seed, task.outputs, simulate)
            alone.append(statistic_of(task, outputs, every.records, ALONE))
    models[ALONE] = ("none", Statistic.mean(alone, [1 / SEEDS] * SEEDS))
    comparison = compare(models, every.units, measure, question)
    once = np.ones((1, len(every.units)))
    spread = float(np.std([model.only([measure])(once) for model in alone], ddof=1))
    return Expectation(comparison, spread, SEEDS)


def in_words(expectation: Expectation) -> str:
    """Return a sentence on the gain over the constant."""
    models = {model.name: model for model in expectation.comparison.models}
    auroc = models[HOME].measures.get("auroc") if HOME in models else None
    if auroc is not None and auroc.value > TELLING:
        return (
            "no conclusion: at home the features predict the label too well (AUROC "
            f"{auroc.value:.3f}), so one of them may hold the outcome; see: hdpfl-site profile "
            "check"
        )
    gain = models[ALONE].gains["constant"]
    if gain.above:
        return (
            "without other sites, a model of this site's records would be better than the "
            "constant under this (ε, δ)"
        )
    if gain.below:
        return (
            "without other sites, a model of this site's records would be worse than the "
            "constant under this (ε, δ)"
        )
    return (
        "without other sites, so few records do not show under this (ε, δ) whether a model "
        "would be better than the constant"
    )


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


def _run_alone(
    site: Profile,
    terms: RunTerms,
    plan: Plan,
    task: Task,
    records: Records,
    name: str,
    seed: int,
) -> Predict:
    """Return the model after all rounds of the plan."""
    training, spec = site.training, terms.model
    # Small steps are shared out at a loss: threads then wait for one another.
    small = size_of(spec, task) < _SMALL
    use_threads(training.torch_threads or (1 if small else available_cores()))
    layout = arrays_of(build_model(spec, task, seed))
    theta = flatten(layout)
    engine = engine_for(spec, task, training.engine, pick_device(training.device))
    for server_round in range(1, plan.rounds + 1):
        theta = theta + train(
            engine,
            theta,
            records,
            plan.round(server_round, terms.clip_norm),
            terms.learning_rate,
            # Of a simulation: reproducible, released nowhere, and shared with no release.
            ReleaseStreams.simulated(seed, name, server_round, "expect"),
            training.physical_batch,
        )
    arrays = unflatten(theta, layout)
    return lambda features: predict(spec, task, arrays, features)
