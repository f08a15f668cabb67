"""Clinical measures of a model on records, with intervals.

With several classes a binary measure is taken for each class against the rest and averaged over the
classes (macro one-vs-rest); the calibration intercept is for two classes only, since its mean over
classes is 0 for any model. A measure without a value on the records is missing, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_softmax, logsumexp

from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.bootstrap import Estimate, Floats, interval, resampled
from hdpfl_flower.measures.calibration import Calibration
from hdpfl_flower.measures.ranks import Ranking
from hdpfl_flower.measures.survival import SurvivalMeasures
from hdpfl_flower.models.task import Task

Outputs = npt.NDArray[np.float32]
Targets = npt.NDArray[np.int64] | npt.NDArray[np.float32]

SPECIFICITY = 0.9
"""Default specificity at which sensitivity is measured."""
RANKS = ("auroc", "auprc", "sensitivity")
CALIBRATION = ("calibration-slope", "calibration-intercept")
OF_CLASSES = (
    *RANKS, "brier", *CALIBRATION, "accuracy", "balanced-accuracy", "macro-f1", "log-loss"
)  # fmt: skip
OF_NUMBERS = ("r2", "mse", "mae")
SHARES = frozenset({*RANKS, "concordance", "accuracy", "balanced-accuracy", "macro-f1"})
"""Measures from 0 to 1, where 1 is best."""
WORDS: Mapping[str, str] = {
    "auroc": "AUROC", "auprc": "AUPRC", "sensitivity": "sensitivity", "brier": "Brier score",
    "calibration-slope": "calibration slope", "calibration-intercept": "calibration intercept",
    "accuracy": "accuracy", "balanced-accuracy": "balanced accuracy", "macro-f1": "macro-F1",
    "concordance": "concordance", "log-loss": "log loss (nats)",
    "r2": "R²", "mse": "MSE", "mae": "MAE",
}  # fmt: skip
"""Names of the measures in tables."""
WIDEST = 10.0
"""Reach of an interval of a calibration beyond which value and interval are withheld: odds e¹⁰."""
_WITHHELD = (
    "withheld: too few records, or scores too alike, to fit it (its interval of {level:g} % would "
    "be {low:.3g} to {high:.3g})"
)
FEWEST, MOST, AT_MOST = 200, 2000, 2_000_000
"""Bounds on resamples per interval, and on their total weighted records."""


class Statistic(Protocol):
    """Measures of weighted records."""

    @property
    def names(self) -> Sequence[str]:
        """Measures in the order of tables."""

    def __call__(self, weights: Floats) -> Floats:
        """Return the measures ``(c, k)`` of weights ``(c, n)``; NaN if undefined."""


@dataclass(frozen=True)
class Measured:
    """Measures of one model on records.

    Attributes:
        records: their number.
        units: number of units (a person, or a record) that the intervals resample.
        level: of the intervals, such as 0.95.
        specificity: at which ``sensitivity`` is measured; 0 without classes.
        found: measure → value and interval; in the order of tables.
        missing: measure → reason why it has no value on these records.
    """

    records: int
    units: int
    level: float
    specificity: float
    found: Mapping[str, Estimate]
    missing: Mapping[str, str]

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON; infinite ends are null."""
        return {
            "records": self.records,
            "units": self.units,
            "level": self.level,
            **({"specificity": self.specificity} if self.specificity else {}),
            "measures": {
                name: {key: _finite(getattr(one, key)) for key in ("value", "low", "high")}
                for name, one in self.found.items()
            },
            **({"missing": dict(self.missing)} if self.missing else {}),
        }


class ClassMeasures:
    """:data:`OF_CLASSES` on records of a classification.

    Attributes:
        names: the measures.
        missing: measure → reason why it has no value on these records.
    """

    def __init__(
        self, task: Task, outputs: Outputs, targets: Targets, specificity: float = SPECIFICITY
    ) -> None:
        """Score the records.

        Args:
            task: with classes.
            outputs: logits, shape ``(n, task.outputs)``, n ≥ 1.
            targets: classes, shape ``(n,)``.
            specificity: see :data:`SPECIFICITY`.

        Raises:
            DataError: an output is not finite.
        """
        self._specificity = specificity
        self.names = [name for name in OF_CLASSES if task.classes == 2 or name != CALIBRATION[1]]
        numbers, wanted = _checked(outputs), targets.astype(np.int64)
        if task.loss == "logistic":
            # One logit z is the pair (0, z), and 0 is no class 1.
            numbers = np.hstack([np.zeros_like(numbers), numbers])
        truth = np.eye(task.classes)[wanted]
        chosen = np.eye(task.classes)[numbers.argmax(1)]
        # Binary: class 1 alone; its Brier score is that of one probability, not the sum over two.
        classes = (1,) if task.classes == 2 else range(task.classes)
        logits = {k: _against_the_rest(numbers, k) for k in classes}
        self._ranked = [Ranking(logits[k], truth[:, k] > 0) for k in classes]
        self._calibrated = [Calibration(logits[k], truth[:, k]) for k in classes]
        errors = [(expit(logits[k]) - truth[:, k]) ** 2 for k in classes]
        right = (chosen * truth).sum(1)
        log_losses = -np.take_along_axis(log_softmax(numbers, axis=1), wanted[:, None], 1)[:, 0]
        self._means = np.stack([right, np.sum(errors, axis=0), log_losses], axis=1)
        self._truth, self._chosen, self._right = truth, chosen, chosen * truth
        self.missing = dict(self._why_missing(truth))

    def __call__(self, weights: Floats) -> Floats:
        """Return the measures, shape ``(c, k)``; see :class:`Statistic`."""
        curves = [ranking.curve(weights) for ranking in self._ranked]
        fits = _mean([one.resampled(weights) for one in self._calibrated])
        accuracy, brier, log_loss = (weights @ self._means / weights.sum(1, keepdims=True)).T
        there, chosen = weights @ self._truth, weights @ self._chosen
        right = weights @ self._right
        with np.errstate(divide="ignore", invalid="ignore"):
            recalls, f1 = right / there, 2 * right / (there + chosen)
        found = {
            "auroc": _mean([curve.auroc() for curve in curves]),
            "auprc": _mean([curve.average_precision() for curve in curves]),
            "sensitivity": _mean([curve.sensitivity(self._specificity) for curve in curves]),
            "brier": brier,
            "calibration-slope": fits[:, 0],
            "calibration-intercept": fits[:, 1],
            "accuracy": accuracy,
            "balanced-accuracy": _mean([*recalls.T]),
            "macro-f1": _mean([*f1.T]),
            "log-loss": log_loss,
        }
        return np.stack([found[name] for name in self.names], axis=1)

    def _why_missing(self, truth: Floats) -> list[tuple[str, str]]:
        if len(np.flatnonzero(truth.sum(0))) < 2:
            of_two = [name for name in (*RANKS, *CALIBRATION) if name in self.names]
            return [(name, "the records are of one class") for name in of_two]
        if not any(math.isfinite(one.slope) for one in self._calibrated):
            return [(CALIBRATION[0], "a threshold separates the classes, or all scores are equal")]
        return []


class NumberMeasures:
    """:data:`OF_NUMBERS` on records of a regression, in target units.

    R² is 1 − MSE / Var of the targets: 0 for their mean, below 0 for worse predictions.
    """

    names: Sequence[str] = OF_NUMBERS

    def __init__(self, outputs: Outputs, targets: Targets) -> None:
        """Score the records; arguments and errors as of :class:`ClassMeasures`."""
        wanted = targets.astype(np.float64)
        errors = _checked(outputs)[:, 0] - wanted
        # Centred first: otherwise E t² − (E t)² would lose digits.
        wanted = wanted - wanted.mean()
        self._means = np.stack([errors**2, np.abs(errors), wanted, wanted**2], axis=1)
        varies = bool(np.ptp(wanted) > 0)
        self.missing = {} if varies else {"r2": "the targets do not vary"}

    def __call__(self, weights: Floats) -> Floats:
        """Return the measures, shape ``(c, k)``; see :class:`Statistic`."""
        mse, mae, first, second = (weights @ self._means / weights.sum(1, keepdims=True)).T
        spread = second - first**2
        with np.errstate(divide="ignore", invalid="ignore"):
            r2 = np.where(spread > 1e-12, 1 - mse / spread, np.nan)
        return np.stack([r2, mse, mae], axis=1)


def measures_of(
    task: Task, outputs: Outputs, targets: Targets, specificity: float = SPECIFICITY
) -> ClassMeasures | NumberMeasures | SurvivalMeasures:
    """Return the measures of ``task``; arguments as of :class:`ClassMeasures`.

    Raises:
        DataError: an output is not finite.
    """
    if task.classes:
        return ClassMeasures(task, outputs, targets, specificity)
    if task.intervals:
        return SurvivalMeasures(_checked(outputs), targets.astype(np.int64))
    return NumberMeasures(outputs, targets)


@dataclass(frozen=True)
class How:
    """Settings of the intervals.

    Attributes:
        level: of each single interval.
        specificity: at which sensitivity is measured.
        seed: of the resamples.
        draws: maximum resamples; fewer for many records.
    """

    level: float = 0.95
    specificity: float = SPECIFICITY
    seed: int = 0
    draws: int = MOST


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
    found = with_intervals(statistic, units, statistic.missing, how)
    # For survival the units with an event, and those without one.
    groups = targets.astype(np.int64) % 2 if task.intervals else targets
    smaller = _smaller_class(groups, units) if task.classes or task.intervals else 0
    return replace(
        found,
        specificity=how.specificity if task.classes else 0.0,
        found={name: _of_few(name, one, smaller, how.level) for name, one in found.found.items()},
    )


def with_intervals(
    statistic: Statistic,
    units: npt.NDArray[np.int64],
    missing: Mapping[str, str],
    how: How = AS_USUAL,
) -> Measured:
    """Return the measures of ``statistic`` with intervals.

    Args:
        statistic: of weighted records.
        units: the unit of each record, shape ``(n,)``.
        missing: measure → reason why it has no value.
        how: level and so on.
    """
    number, names = len(np.unique(units)), list(statistic.names)
    values = statistic(np.ones((1, len(units))))[0]
    draws = resampled(
        units, statistic, how.seed, max(FEWEST, min(how.draws, AT_MOST // len(units)))
    )
    found = {
        name: interval(float(value), draws[:, at], number, how.level)
        for at, (name, value) in enumerate(zip(names, values, strict=True))
        if math.isfinite(value) and name not in missing
    }
    why = {name: missing.get(name, "no value") for name in names if name not in found}
    for name in [name for name in CALIBRATION if name in found and not _is_sound(found[name])]:
        one = found.pop(name)
        why[name] = _WITHHELD.format(level=100 * how.level, low=one.low, high=one.high)
    return Measured(len(units), number, how.level, 0.0, found, why)


def _is_sound(one: Estimate) -> bool:
    """Return whether a calibration's interval holds its value and is no nonsense."""
    return one.low <= one.value <= one.high and one.high - one.low <= 2 * WIDEST


def _of_few(name: str, one: Estimate, units: int, level: float) -> Estimate:
    """Return ``one`` widened if no resample differs.

    A share of 1 among few units is not certain.

    As for n successes in n trials (Clopper and Pearson, Biometrika 1934), n the units of the
    smallest class: below 1 by 1 − (α/2)^(1/n).
    """
    if name not in SHARES or one.low != one.high or units < 1:
        return one
    reach = 1 - ((1 - level) / 2) ** (1 / units)
    return Estimate(one.value, max(0.0, one.low - reach), min(1.0, one.high + reach))


def _smaller_class(targets: Targets, units: npt.NDArray[np.int64]) -> int:
    """Return the number of units in the smallest non-empty class."""
    return min(len(np.unique(units[targets == k])) for k in np.unique(targets))


def _checked(outputs: Outputs) -> Floats:
    if not np.isfinite(outputs).all():
        raise DataError(
            "the model's predictions are not finite; lower 'learning-rate' in the next run"
        )
    return outputs.astype(np.float64)


def _against_the_rest(logits: Floats, k: int) -> Floats:
    """Return the logit of class ``k``'s probability, shape ``(n,)``."""
    rest = np.delete(logits, k, axis=1)
    found: Floats = logits[:, k] - logsumexp(rest, axis=1)
    return found


def _mean(by_class: Sequence[Floats]) -> Floats:
    """Return the mean over classes with a value, or NaN."""
    stacked = np.stack(by_class)
    known = np.isfinite(stacked)
    total = np.where(known, stacked, 0.0).sum(0)
    count = known.sum(0)
    found: Floats = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
