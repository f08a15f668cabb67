"""Judgement of a joined run against the site alone.

Each figure names its records. Held-out records decide, on which neither the run's models nor the
home model beside them were trained; where the schema has an id column, all labelled records of the
units that are held out. Cross-validation covers all records of the site, which the run's models
were trained on, so only the home model and the constant are in it. It is the steadier figure of
home training: its folds share their training records, and its interval leaves that out (Bengio and
Grandvalet, JMLR 2004: no unbiased estimate of it exists).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_tools.site.stored_models import checked_final_model
from hdpfl_tools.site.worth.candidates import HOME, Candidate, candidates, constant
from hdpfl_tools.site.worth.comparison import ModelComparison, Question, compare, statistic_of
from hdpfl_tools.site.worth.home_model import HomeTraining, Tick, home_predictor, references
from hdpfl_tools.tables.site_data import read_unit_records

Progress = Callable[[str, int], AbstractContextManager[Tick]]
"""Title and number of ticks → a context of the function to call at each tick."""


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
        check_run(self.model.terms.run_id, question.run)
        self.measure = question.measure_for(self._task)
        self._question = question
        self._every = read_unit_records(source, self._task, self.model.terms.schema_text)
        self._held = np.flatnonzero(self._every.held_out)
        self._trained = np.flatnonzero(self._every.first & ~self._every.held_out)
        if not len(self._held):
            raise DataError("'data.holdout' keeps none of these records out of training; raise it")
        if not len(self._trained):
            raise DataError("'data.holdout' leaves no record for training; lower it")
        self._candidates = candidates(site, self.model, self._task)
        if not self._candidates:
            raise DataError(
                f"run '{self.model.terms.run_id}' leaves a part of its model at each site, but "
                "this site has no such part: it took no part in the run"
            )
        self.home = HomeTraining(self.model.terms.model, self._task, question.seed)

    def on_held_out(self, progress: Progress) -> ModelComparison:
        """Return the comparison that decides: on the held-out records.

        The home model and the constant are made of the training records alone.
        """
        every, records = self._every, self._every.records.take(self._held)
        train = every.records.take(self._trained)
        with progress(HOME, self.home.fits) as tick:
            at_home = home_predictor(self.home, train, every.copies[self._trained], tick)
        models = [
            constant(self._task, train.targets),
            Candidate(HOME, "none", at_home),
            *self._candidates,
        ]
        statistics = {
            model.name: (
                model.kind,
                statistic_of(self._task, model.predict(records.features), records, model.name),
            )
            for model in models
        }
        return compare(statistics, every.units[self._held], self.measure, self._question)

    def at_home(self, progress: Progress) -> ModelComparison:
        """Return home model and constant on all records of the site, each by a fold without it."""
        question, every = self._question, self._every
        with progress("cross-validation", question.folds * self.home.fits) as tick:
            models = references(self.home, every, question.folds, tick)
        return compare(models, every.units, self.measure, question)


def check_run(run_id: str, wanted: str) -> None:
    """Raise ``DataError`` unless the kept model's run is the ``wanted`` one; empty: any."""
    if wanted and wanted != run_id:
        raise DataError(
            f"the model kept in [state] is that of run '{run_id}', not of '{wanted}'; the site "
            "keeps only the model of the last run"
        )


def _source(site: Profile) -> DataSource:
    if site.data is None:
        raise ProfileError("profile: [data] is missing; say where the site's records lie")
    if site.data.holdout == 0:
        raise ProfileError(
            "profile: 'data.holdout' is 0, so the run's models were trained on every record and "
            "no record can judge them; set it, for example holdout = 0.3, before the next run"
        )
    return site.data
