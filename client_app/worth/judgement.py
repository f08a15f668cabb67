"""Judgement of a joined run against the site alone.

Each figure names its records. What decides is measured on held-out records, on which neither the
run's models nor the home model beside them were trained; where the schema has an id column, on all
labelled records of the units that are held out. Cross-validation covers all records of the site,
which the run's models were trained on, so only the home model and the constant are in it. It is
the steadier figure of what home training reaches here: its folds share their training records, and
its interval leaves that out (Bengio and Grandvalet, JMLR 2004: no unbiased estimate of it exists).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from client_app.after_run.final_model import FinalModel
from client_app.after_run.stored_models import checked_final_model
from client_app.training.trainer import use_threads
from client_app.worth.candidates import (
    CONSTANT,
    HOME,
    Candidate,
    Kind,
    Outputs,
    candidates,
    constant,
)
from client_app.worth.comparison import ModelComparison, compare
from client_app.worth.home_model import (
    HomeTraining,
    Tick,
    folds_of,
    home_pieces,
    home_predictor,
    rates_beside,
)
from client_app.worth.scores import Scored, deciding_measures, scored
from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.site_data import UnitRecords, read_unit_records
from hdpfl_flower.errors import DataError, ProfileError, TermsError
from hdpfl_flower.models.networks import size_of
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.devices import pick_device
from hdpfl_flower.system.paths import available_cores

_SMALL = 100_000
"""Parameters below which one thread trains faster than several."""


class Progress(Protocol):
    """Progress bar: title and ticks → a context of its update."""

    def __call__(self, title: str, total: int) -> AbstractContextManager[Tick]:
        """Return that context."""


@dataclass(frozen=True)
class Question:
    """Question of a judgement.

    Attributes:
        run: the id of the run; empty: the one whose model is kept.
        measure: that decides; empty: the task's usual one.
        folds: of the cross-validation.
        most_epochs: of a training at home.
        confidence: of the intervals.
        seed: of home training, folds and resamples.
    """

    run: str = ""
    measure: str = ""
    folds: int = 5
    most_epochs: int = 64
    confidence: float = 0.95
    seed: int = 0


class WorthJudgement:
    """A site's checked records and models, ready to compare.

    Attributes:
        model: the final model of the run.
        measure: that decides.
        home: how the site trains at home.
    """

    def __init__(self, site: Profile, question: Question) -> None:
        """Read records and kept models, without writes or charges.

        Raises:
            ProfileError: the profile names no records, holds none out or keeps no models.
            DataError: no model is kept, or of another run; no record is held out, or none is left.
            TermsError: the measure is none of the task's.
            Declined, ModelError: the model cannot be built here.
        """
        source = _source(site)
        self.model, self._task = checked_final_model(site)
        _check_run(self.model, question.run)
        self.measure = measure_for(self._task, question.measure)
        self._question = question
        self._every = read_unit_records(source, self._task, self.model.terms.schema_text)
        self._held = np.flatnonzero(self._every.held_out)
        self._trained = np.flatnonzero(self._every.first & ~self._every.held_out)
        if not len(self._held):
            raise DataError("'data.holdout' keeps no record of these out of training; raise it")
        if not len(self._trained):
            raise DataError("'data.holdout' leaves no record for training; lower it")
        self._candidates = candidates(site, self.model, self._task)
        if not self._candidates:
            raise DataError(
                f"run '{self.model.terms.run_id}' leaves a part of its model at each site, and "
                "this site has none; it took no part in the run"
            )
        self.home = home_training(site, self.model.terms, self._task, question)

    def on_held_out(self, progress: Progress) -> ModelComparison:
        """Return the comparison that decides: on the held-out records.

        The home model and the constant are made of the training records alone.
        """
        every, records = self._every, self._every.records.take(self._held)
        train = every.records.take(self._trained)
        with progress("home model", home_pieces(self.home)) as tick:
            at_home = home_predictor(self.home, train, every.copies[self._trained], tick)
        models = [
            constant(self._task, train.targets),
            Candidate(HOME, "none", at_home),
            *self._candidates,
        ]
        found = {
            each.name: (
                each.kind,
                scored(self._task, each.predict(records.features), records, each.name),
            )
            for each in models
        }
        question = self._question
        return compare(
            found, every.units[self._held], self.measure, question.confidence, question.seed
        )

    def at_home(self, progress: Progress) -> ModelComparison:
        """Return home model and constant on all records of the site, each by a fold without it."""
        question, folds = self._question, self._question.folds
        with progress("cross-validation", folds * home_pieces(self.home)) as tick:
            outputs = out_of_fold(self.home, self._every, folds, tick)
        found = scores_of(self._task, outputs, self._every.records)
        return compare(found, self._every.units, self.measure, question.confidence, question.seed)


def scores_of(
    task: Task, outputs: Mapping[str, Outputs], records: Records
) -> dict[str, tuple[Kind, Scored]]:
    """Return :func:`out_of_fold`'s result as scores of a comparison."""
    found = {name: scored(task, each, records, name) for name, each in outputs.items()}
    ranks = found[CONSTANT].ranks
    if ranks is not None:
        # A fold with many of a class leaves few for its constant: as ranks these would be below ½.
        found[CONSTANT] = replace(found[CONSTANT], ranks=np.zeros_like(ranks))
    return {name: ("none", each) for name, each in found.items()}


def out_of_fold(
    home: HomeTraining, every: UnitRecords, folds: int, tick: Tick
) -> dict[str, Outputs]:
    """Return out-of-fold predictions of constant and home model.

    Args:
        home: how the site trains.
        every: the records; one of each unit is trained on, and all are predicted.
        folds: 2 or more; a unit, and records of the same content, lie in one fold.
        tick: called ``folds · home_pieces(home)`` times at most.

    Returns:
        name → outputs, shape ``(n, task.outputs)``.

    Raises:
        DataError: there are fewer units than two.
    """
    records, fold = every.records, folds_of(every.copies, folds, home.seed)
    if fold.max() == 0:
        raise DataError("cross-validation needs records of two units at least")
    outputs = {
        name: np.empty((len(records), home.task.outputs), np.float32) for name in (CONSTANT, HOME)
    }
    for number in range(int(fold.max()) + 1):
        rows, test = np.flatnonzero((fold != number) & every.first), np.flatnonzero(fold == number)
        train, features = records.take(rows), records.features[test]
        outputs[CONSTANT][test] = constant(home.task, train.targets).predict(features)
        outputs[HOME][test] = home_predictor(home, train, every.copies[rows], tick)(features)
    return outputs


def home_training(site: Profile, terms: RunTerms, task: Task, question: Question) -> HomeTraining:
    """Return how a site trains the model of a run at home."""
    training = site.training
    # Small steps are shared out at a loss: threads then wait for one another.
    small = size_of(terms.model, task) < _SMALL
    use_threads(training.torch_threads or (1 if small else available_cores()))
    return HomeTraining(
        terms.model, task, pick_device(training.device), training.batch_size,
        rates_beside(terms.learning_rate), question.most_epochs, question.seed,
    )  # fmt: skip


def measure_for(task: Task, wanted: str) -> str:
    """Return the deciding measure; raises ``TermsError`` without one."""
    known = deciding_measures(task)
    if wanted and wanted not in known:
        raise TermsError(f"'--by' names no measure of this task; choose {' or '.join(known)}")
    return wanted or known[0]


def _source(site: Profile) -> DataSource:
    if site.data is None:
        raise ProfileError("profile: [data] is missing; say where the site's records lie")
    if site.data.holdout == 0:
        raise ProfileError(
            "profile: 'data.holdout' is 0, so the run's models were trained on every record and "
            "none can judge them; set it, such as holdout = 0.3, before the next run"
        )
    return site.data


def _check_run(model: FinalModel, run: str) -> None:
    if run and run != model.terms.run_id:
        raise DataError(
            f"the model kept in [state] is that of run '{model.terms.run_id}', not of '{run}'; "
            "only the last run's is kept"
        )
