"""Clinical measures of a model on records, with intervals.

With several classes a binary measure is taken for each class against the rest and averaged over the
classes (macro one-vs-rest); the calibration intercept is for two classes only, since its mean over
classes is 0 for any model. A measure without a value on the records is missing, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_softmax, logsumexp

from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.bootstrap import Estimate, Floats, interval, resampled
from hdpfl_flower.measures.concordance import Concordance, risk_of
from hdpfl_flower.measures.words import SPECIFICITY, WORDS
from hdpfl_flower.models.task import Task
from hdpfl_tools.measures.calibration import Calibration
from hdpfl_tools.measures.ranks import Ranking

Outputs = npt.NDArray[np.float32]
Targets = npt.NDArray[np.int64] | npt.NDArray[np.float32]

RANKS = ("auroc", "auprc", "sensitivity")
CALIBRATION = ("calibration-slope", "calibration-intercept")
OF_NUMBERS = ("r2", "mse", "mae")
OF_SURVIVAL = ("concordance", "log-loss")
SHARES = frozenset({*RANKS, "concordance", "accuracy", "balanced-accuracy", "macro-f1"})
"""Measures from 0 to 1, where 1 is best."""
WIDEST = 10.0
"""Reach of an interval of a calibration beyond which value and interval are withheld: odds e¹⁰."""
_WITHHELD = (
    "withheld: too few records, or scores that differ too little, to fit it (its interval of "
    "{level:g} % would be {low:.3g} to {high:.3g})"
)
FEWEST, MOST, AT_MOST = 200, 2000, 2_000_000
"""Bounds on resamples per interval, and on their total weighted records."""


@dataclass(frozen=True, repr=False)
class Statistic:
    """Measures of weighted records, for bootstrap intervals.

    Attributes:
        names: the measures, in the order of tables.
        by_record: measure → score of each record, shape ``(n,)``; its weighted mean is the measure.
        others: names → function of weights ``(c, n)`` to these measures ``(c, k)``.
        missing: measure → reason why it has no value on these records.
    """

    names: Sequence[str]
    by_record: Mapping[str, Floats]
    others: Mapping[tuple[str, ...], Callable[[Floats], Floats]]
    missing: Mapping[str, str]

    def __call__(self, weights: Floats) -> Floats:
        """Return the measures, shape ``(c, k)``, of weights ``(c, n)``; NaN if undefined."""
        scores = np.stack([*self.by_record.values()], axis=1)
        means = weights @ scores / weights.sum(1, keepdims=True)
        values = dict(zip(self.by_record, means.T, strict=True))
        for names, function in self.others.items():
            if not set(names).isdisjoint(self.names):
                values.update(zip(names, function(weights).T, strict=True))
        return np.stack([values[name] for name in self.names], axis=1)

    def only(self, names: Sequence[str]) -> Statistic:
        """Return the statistic of the measures ``names`` alone."""
        return replace(self, names=names)

    @staticmethod
    def mean(statistics: Sequence[Statistic], shares: Sequence[float]) -> Statistic:
        """Return the mean of several models' measures on equally many records.

        Args:
            statistics: one of each model, with the same measures.
            shares: their weights, of sum 1.
        """
        models, first = [*zip(shares, statistics, strict=True)], statistics[0]

        def mean_of(names: tuple[str, ...]) -> Callable[[Floats], Floats]:
            return lambda weights: np.sum(
                [share * model.only(names)(weights) for share, model in models], axis=0
            )

        return Statistic(
            first.names,
            {
                name: np.sum([share * model.by_record[name] for share, model in models], axis=0)
                for name in first.by_record
            },
            {names: mean_of(names) for names in first.others},
            {name: why for model in statistics for name, why in model.missing.items()},
        )


@dataclass(frozen=True)
class Measured:
    """Measures of one model on records.

    Attributes:
        records: their number.
        units: number of units (a person, or a record) that the intervals resample.
        level: of the intervals, between 0 and 1.
        specificity: at which ``sensitivity`` is measured; 0 without classes.
        estimates: measure → value and interval; in the order of tables.
        missing: measure → reason why it has no value on these records.
        draws: measure → its values on the resamples, shape ``(draws,)``.
    """

    records: int
    units: int
    level: float
    specificity: float
    estimates: Mapping[str, Estimate]
    missing: Mapping[str, str]
    draws: Mapping[str, Floats] = field(default_factory=dict, repr=False, compare=False)

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON; infinite ends are null."""
        return {
            "records": self.records,
            "units": self.units,
            "level": self.level,
            **({"specificity": self.specificity} if self.specificity else {}),
            "measures": {name: estimate.facts() for name, estimate in self.estimates.items()},
            **({"missing": dict(self.missing)} if self.missing else {}),
        }


def measures_of(
    task: Task,
    outputs: Outputs,
    targets: Targets,
    specificity: float = SPECIFICITY,
) -> Statistic:
    """Return the measures of ``task``.

    Args:
        task: of the model.
        outputs: of the model, shape ``(n, task.outputs)``, n ≥ 1.
        targets: classes, numbers of a regression, or of survival, shape ``(n,)``.
        specificity: see :data:`SPECIFICITY`.

    Raises:
        DataError: an output is not finite.
    """
    if not np.isfinite(outputs).all():
        raise DataError(
            "the model's predictions are not finite; lower 'learning-rate' in the next run"
        )
    numbers = outputs.astype(np.float64)
    if task.classes:
        return _of_classes(task, numbers, targets.astype(np.int64), specificity)
    if task.intervals:
        return _of_survival(numbers, targets.astype(np.int64))
    return _of_numbers(numbers[:, 0], targets.astype(np.float64))


def _of_classes(
    task: Task, numbers: Floats, targets: npt.NDArray[np.int64], specificity: float
) -> Statistic:
    if task.loss == "logistic":
        # One logit z is the pair (0, z), and 0 is no class 1.
        numbers = np.hstack([np.zeros_like(numbers), numbers])
    truth = np.eye(task.classes)[targets]
    chosen = np.eye(task.classes)[numbers.argmax(1)]
    # Binary: class 1 alone; its Brier score is that of one probability, not the sum over two.
    classes = (1,) if task.classes == 2 else range(task.classes)
    logits = {k: _against_the_rest(numbers, k) for k in classes}
    rankings = [Ranking(logits[k], truth[:, k] > 0) for k in classes]
    fits = [Calibration(logits[k], truth[:, k]) for k in classes]
    by_record = {
        "brier": np.sum([(expit(logits[k]) - truth[:, k]) ** 2 for k in classes], axis=0),
        "accuracy": (chosen * truth).sum(1),
        "log-loss": -np.take_along_axis(log_softmax(numbers, axis=1), targets[:, None], 1)[:, 0],
    }

    def ranks(weights: Floats) -> Floats:
        curves = [ranking.curve(weights) for ranking in rankings]
        columns = (
            [curve.auroc() for curve in curves],
            [curve.average_precision() for curve in curves],
            [curve.sensitivity(specificity) for curve in curves],
        )
        return np.stack([_mean(values) for values in columns], axis=1)

    def balanced(weights: Floats) -> Floats:
        right = weights @ (chosen * truth)
        there, called = weights @ truth, weights @ chosen
        with np.errstate(divide="ignore", invalid="ignore"):
            recalls, f1 = right / there, 2 * right / (there + called)
        return np.stack([_mean([*recalls.T]), _mean([*f1.T])], axis=1)

    missing: dict[str, str] = {}
    if len(np.unique(targets)) < 2:
        missing = dict.fromkeys((*RANKS, *CALIBRATION), "all records are of one class")
    elif not any(math.isfinite(fit.slope) for fit in fits):
        why = "a threshold separates the classes, or all scores are equal"
        missing = {CALIBRATION[0]: why}
    others: dict[tuple[str, ...], Callable[[Floats], Floats]] = {
        RANKS: ranks,
        CALIBRATION: lambda weights: _mean([fit.resampled(weights) for fit in fits]),
        ("balanced-accuracy", "macro-f1"): balanced,
    }
    names = [name for name in WORDS if name in by_record or any(name in group for group in others)]
    if task.classes > 2:
        names.remove(CALIBRATION[1])
    return Statistic(names, by_record, others, {n: w for n, w in missing.items() if n in names})


def _of_numbers(outputs: Floats, targets: Floats) -> Statistic:
    """Return :data:`OF_NUMBERS` in target units.

    R² is 1 − MSE / Var of the targets: 0 for their mean, below 0 for worse predictions.
    """
    errors = outputs - targets
    # Centred first: otherwise E t² − (E t)² would lose digits.
    centred = targets - targets.mean()
    squares = np.stack([errors**2, centred, centred**2], axis=1)

    def r2(weights: Floats) -> Floats:
        mse, first, second = (weights @ squares / weights.sum(1, keepdims=True)).T
        spread = second - first**2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(spread > 1e-12, 1 - mse / spread, np.nan)[:, None]

    varies = bool(np.ptp(targets) > 0)
    missing = {} if varies else {"r2": "the targets do not vary"}
    by_record = {"mse": errors**2, "mae": np.abs(errors)}
    return Statistic(OF_NUMBERS, by_record, {("r2",): r2}, missing)


def _of_survival(outputs: Floats, targets: npt.NDArray[np.int64]) -> Statistic:
    """Return :data:`OF_SURVIVAL` of logits of the hazard in each interval, shape ``(n, T)``."""
    last, event = targets // 2, targets % 2 == 1
    concordance = Concordance(risk_of(outputs), targets)
    at_risk = np.arange(outputs.shape[1]) <= last[:, None]
    losses = np.where(at_risk, np.logaddexp(0, outputs), 0.0).sum(1)
    losses -= np.where(event, outputs[np.arange(len(last)), last], 0.0)
    is_known = np.isfinite(concordance(np.ones((1, len(targets)))))[0]
    why = "no record has its event before the end of another record"

    def ranked(weights: Floats) -> Floats:
        return concordance(weights)[:, None]

    missing = {} if is_known else {"concordance": why}
    return Statistic(OF_SURVIVAL, {"log-loss": losses}, {("concordance",): ranked}, missing)


@dataclass(frozen=True)
class How:
    """Settings of the intervals.

    Attributes:
        level: of each single interval.
        specificity: at which sensitivity is measured.
        seed: of the resamples.
        draws: maximum resamples; fewer for many records.
        fewest: resamples of many records.
    """

    level: float = 0.95
    specificity: float = SPECIFICITY
    seed: int = 0
    draws: int = MOST
    fewest: int = FEWEST


AS_USUAL = How()


def measure(
    task: Task,
    outputs: Outputs,
    targets: Targets,
    units: npt.NDArray[np.int64] | None = None,
    how: How = AS_USUAL,
) -> Measured:
    """Return all measures of a model's outputs with intervals over units.

    Args:
        task: of the model.
        outputs: shape ``(n, task.outputs)``, n ≥ 1.
        targets: classes, numbers of a regression, or of survival, shape ``(n,)``.
        units: the unit of each record, shape ``(n,)``; None: each record is one.
        how: level and so on.

    Raises:
        DataError: an output is not finite.
    """
    statistic = measures_of(task, outputs, targets, how.specificity)
    units = np.arange(len(targets)) if units is None else units
    measured = with_intervals(statistic, units, how)
    # For survival the units with an event, and those without one.
    groups = targets.astype(np.int64) % 2 if task.intervals else targets
    smaller = _smaller_class(groups, units) if task.classes or task.intervals else 0
    return replace(
        measured,
        specificity=how.specificity if task.classes else 0.0,
        estimates={
            name: _of_few(name, estimate, smaller, how.level)
            for name, estimate in measured.estimates.items()
        },
    )


def with_intervals(
    statistic: Statistic, units: npt.NDArray[np.int64], how: How = AS_USUAL
) -> Measured:
    """Return the measures of ``statistic`` with intervals.

    Args:
        statistic: of weighted records.
        units: the unit of each record, shape ``(n,)``.
        how: level and so on; one seed draws the same units, so that draws of models are paired.
    """
    number, names, missing = len(np.unique(units)), statistic.names, statistic.missing
    values = statistic(np.ones((1, len(units))))[0]
    count = max(how.fewest, min(how.draws, AT_MOST // len(units)))
    draws = dict(zip(names, resampled(units, statistic, how.seed, count).T, strict=True))
    estimates = {
        name: interval(float(value), draws[name], number, how.level)
        for name, value in zip(names, values, strict=True)
        if math.isfinite(value) and name not in missing
    }
    why = {name: missing.get(name, "no value") for name in names if name not in estimates}
    for name in [
        name for name in CALIBRATION if name in estimates and not _is_sound(estimates[name])
    ]:
        estimate = estimates.pop(name)
        why[name] = _WITHHELD.format(level=100 * how.level, low=estimate.low, high=estimate.high)
    return Measured(len(units), number, how.level, 0.0, estimates, why, draws)


def _is_sound(estimate: Estimate) -> bool:
    """Return whether a calibration's interval holds its value and is no nonsense."""
    is_inside = estimate.low <= estimate.value <= estimate.high
    return is_inside and estimate.high - estimate.low <= 2 * WIDEST


def _of_few(name: str, estimate: Estimate, units: int, level: float) -> Estimate:
    """Return ``estimate``, widened if no resample differs: a share of 1 of few is not certain.

    As for n successes in n trials (Clopper and Pearson, Biometrika 1934), n the units of the
    smallest class: below 1 by 1 − (α/2)^(1/n).
    """
    if name not in SHARES or estimate.low != estimate.high or units < 1:
        return estimate
    reach = 1 - ((1 - level) / 2) ** (1 / units)
    return Estimate(estimate.value, max(0.0, estimate.low - reach), min(1.0, estimate.high + reach))


def _smaller_class(targets: Targets, units: npt.NDArray[np.int64]) -> int:
    """Return the number of units in the smallest non-empty class."""
    return min(len(np.unique(units[targets == k])) for k in np.unique(targets))


def _against_the_rest(logits: Floats, k: int) -> Floats:
    """Return the logit of class ``k``'s probability, shape ``(n,)``."""
    rest = np.delete(logits, k, axis=1)
    against: Floats = logits[:, k] - logsumexp(rest, axis=1)
    return against


def _mean(by_class: Sequence[Floats]) -> Floats:
    """Return the mean over classes with a value, or NaN."""
    stacked = np.stack(by_class)
    is_finite = np.isfinite(stacked)
    total, count = np.where(is_finite, stacked, 0.0).sum(0), is_finite.sum(0)
    mean: Floats = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return mean
