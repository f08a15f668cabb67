"""Models compared on equal records: measures, paired gains, verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.measures import bootstrap
from hdpfl_flower.measures.bootstrap import Estimate, interval, paired
from hdpfl_flower.models.site_summary import is_error
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.measures.clinical import (
    RANKS,
    How,
    Measured,
    Statistic,
    measures_of,
    with_intervals,
)
from hdpfl_tools.site.worth.candidates import CONSTANT, HOME, Kind, Outputs

REFERENCES = (HOME, CONSTANT)
"""Reference of a run's model."""
WORTH = "worth it"
NOT_WORTH = "not worth it"
CANNOT_TELL = "cannot tell with so few records"


@dataclass(frozen=True)
class Question:
    """Question of a judgement.

    Attributes:
        run: the id of the run; empty: the last run.
        measure: that decides; empty: the task's usual one.
        folds: of the cross-validation.
        confidence: of each model's intervals, and of all gains' at once.
        seed: of home training, folds and resamples.
    """

    run: str = ""
    measure: str = ""
    folds: int = 5
    confidence: float = 0.95
    seed: int = 0

    def measure_for(self, task: Task) -> str:
        """Return the deciding measure.

        Raises:
            TermsError: it is no measure of the task.
        """
        choices = deciding_measures(task)
        if self.measure and self.measure not in choices:
            raise TermsError(
                f"'--by' does not name a measure of this task; choose {' or '.join(choices)}"
            )
        return self.measure or choices[0]


@dataclass(frozen=True)
class Judged:
    """One model.

    Attributes:
        name: of the model.
        kind: of the model.
        measures: each measure, with an interval of its own; NaN if undefined.
        gains: reference → gain over it in the deciding measure, above 0 where this model is better.
        verdict: in words; empty for the references.
    """

    name: str
    kind: Kind
    measures: Mapping[str, Estimate]
    gains: Mapping[str, Estimate]
    verdict: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "measures": {name: estimate.facts() for name, estimate in self.measures.items()},
            "gains": {name: estimate.facts() for name, estimate in self.gains.items()},
            **({"verdict": self.verdict} if self.verdict else {}),
        }


@dataclass(frozen=True)
class ModelComparison:
    """Models on the same records.

    Attributes:
        measure: that decides.
        confidence: of each model's own intervals, and of all gains' at once.
        records: their number.
        units: their number.
        models: in the order of the table.
    """

    measure: str
    confidence: float
    records: int
    units: int
    models: Sequence[Judged]

    @property
    def verdict(self) -> str:
        """Verdict on joining: that on the run's best model.

        It is as sure as those of the models: their intervals hold at once, whichever is chosen.
        """
        verdicts = {model.verdict for model in self.models}
        return next(
            estimate for estimate in (WORTH, CANNOT_TELL, NOT_WORTH) if estimate in verdicts
        )

    def facts(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return {
            "records": self.records,
            "units": self.units,
            "measure": self.measure,
            "confidence": self.confidence,
            "models": [model.facts() for model in self.models],
        }


def deciding_measures(task: Task) -> Sequence[str]:
    """Return the possible deciding measures, the usual one first."""
    if task.intervals:
        return ("log-loss", "concordance")
    ranked = ("auroc",) if task.classes == 2 else ()
    return ("log-loss", *ranked, "brier", "accuracy") if task.classes else ("mse", "mae")


def statistic_of(task: Task, outputs: Outputs, records: Records, name: str) -> Statistic:
    """Return the measures of a comparison on ``records``.

    Args:
        task: of the records.
        outputs: of the model, shape ``(n, task.outputs)``.
        records: with their targets.
        name: of the model, for the error; all outputs of the constant rank alike, also of folds.

    Raises:
        DataError: an output is not finite.
    """
    if not np.isfinite(outputs).all():
        raise DataError(f"the predictions of the {name} are not finite, so it cannot be compared")
    statistic = measures_of(task, outputs, records.targets)
    if name == CONSTANT and task.loss != "squared":
        # A fold with many of a class leaves few for its constant: as ranks these would be below ½.
        equal = measures_of(task, np.zeros_like(outputs), records.targets)
        statistic = replace(statistic, others=equal.others)
    more = () if task.loss != "squared" else ("r2",)
    return statistic.only([*deciding_measures(task), *more])


def compare(
    models: Mapping[str, tuple[Kind, Statistic]],
    units: npt.NDArray[np.int64],
    measure: str,
    question: Question,
) -> ModelComparison:
    """Return the comparison of ``models`` on records outside their training.

    The intervals are about other records of the same site, for the models as they are; they leave
    out the change that another training of the same models would make.

    Args:
        models: name → (kind, measures on the records); the home model and the constant are among
            them, and the others are judged.
        units: the unit of each record, shape ``(n,)``.
        measure: that decides, one of :func:`deciding_measures`.
        question: confidence, and the seed of the resamples.

    Guarantees:
        Where the intervals keep their level, all gains of the comparison lie in theirs at once
        with the confidence (Bonferroni's inequality), so that the best of several models may be
        chosen by them.
    """
    draws = bootstrap.DRAWS
    how = How(question.confidence, seed=question.seed, draws=draws, fewest=draws)
    measured = {
        name: with_intervals(statistic, units, how) for name, (_, statistic) in models.items()
    }
    judged = [name for name in models if name not in REFERENCES]
    pairs = [(name, other) for name in judged for other in REFERENCES] or [REFERENCES]
    # All gains at once: each interval may miss with the allowed chance over their number.
    level = 1 - (1 - question.confidence) / len(pairs)
    gains: dict[str, dict[str, Estimate]] = {name: {} for name in models}
    for pair in pairs:
        model, other = ((models[name][1], measured[name]) for name in pair)
        gains[pair[0]][pair[1]] = _gain(measure, model, other, units, level, question.seed)
    undefined = Estimate(np.nan, -np.inf, np.inf)
    return ModelComparison(
        measure,
        question.confidence,
        len(units),
        len(np.unique(units)),
        [
            Judged(
                name,
                kind,
                {
                    estimate: measured[name].estimates.get(estimate, undefined)
                    for estimate in statistic.names
                },
                gains[name],
                _judge(statistic, gains[name]) if name in judged else "",
            )
            for name, (kind, statistic) in models.items()
        ],
    )


def _gain(
    measure: str,
    model: tuple[Statistic, Measured],
    other: tuple[Statistic, Measured],
    units: npt.NDArray[np.int64],
    level: float,
    seed: int,
) -> Estimate:
    """Return the gain of ``model`` over ``other``, each with its intervals."""
    sign = -1.0 if is_error(measure) else 1.0
    draws = sign * (model[1].draws[measure] - other[1].draws[measure])
    if measure in model[0].by_record:
        gains = sign * (model[0].by_record[measure] - other[0].by_record[measure])
        largest = float(measure == "accuracy")
        return paired(gains, units, draws, level, seed, largest=largest)
    values = [measured.estimates.get(measure) for _, measured in (model, other)]
    value = np.nan if None in values else values[0].value - values[1].value  # type: ignore[union-attr]
    return interval(value, draws, model[1].units, level)


def _judge(statistic: Statistic, gains: Mapping[str, Estimate]) -> str:
    # Records of one class show no difference between the classes, however sure a model is.
    if RANKS[0] in statistic.missing:
        return CANNOT_TELL
    return verdict(gains[HOME], gains[CONSTANT])


def verdict(over_home: Estimate, over_constant: Estimate) -> str:
    """Return the verdict on a model.

    Args:
        over_home: its gain over the model that the site trains alone.
        over_constant: its gain over the constant.

    Returns:
        :data:`WORTH` where both intervals lie above 0, :data:`NOT_WORTH` where one of them lies
        below 0, else :data:`CANNOT_TELL`. A verdict other than the last is wrong only where an
        interval is: as all of a comparison hold at once with its confidence, so do the verdicts.

    >>> verdict(Estimate(0.1, 0.02, 0.2), Estimate(0.3, 0.1, 0.4))
    'worth it'
    >>> verdict(Estimate(0.1, 0.0, 0.2), Estimate(0.3, 0.1, 0.4))
    'cannot tell with so few records'
    """
    if over_home.above and over_constant.above:
        return WORTH
    if over_home.below or over_constant.below:
        return NOT_WORTH
    return CANNOT_TELL
