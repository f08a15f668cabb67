"""Layout of a message on coefficients: each record's score and information at a public model.

A record's vector is (s, c·H, m·ssᵀ) at the final model: s its score, H its information (the upper
triangle), ssᵀ what its score adds to the scores' variance, and public factors c and m. The noisy
sums over all sites give coefficients by one Newton step, and their variance
(``server_app/releases/coefficients.py``).

Of a category the first level is the reference, and so is a missing value that is all zeros: of one
feature a level with an intercept, not all coefficients could be told. Survival has one coefficient
a column for all intervals, and an intercept each (proportional odds of the hazards, Singer and
Willett, J. Educ. Stat. 1993, eq. 9). A record of long features x counts less, by min(1, R²/‖x‖²),
which depends on x alone, and so moves no expected score (Mallows' weights: Hampel et al., Robust
Statistics, 1986, §6.3). Residuals of a regression are clipped at ``MOST_RESIDUAL`` (Huber).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np
from scipy.special import expit

from hdpfl_flower.data.record_moments import Floats, exact_sum, layout_of
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.networks import Arrays
from hdpfl_flower.models.task import TYPICAL_LENGTH, Records, Task

EMPTY: Final = 256
"""Coordinates that no record has: they show the noise that the sum has."""
MOST: Final = 100
"""Largest number of coefficients and intercepts: a message of 42 kB."""
MOST_RESIDUAL: Final = 0.5
"""Residual beyond which it counts as this, in widths of the label's bounds."""
FOLLOWED: Final = 0.75
"""Expected events after which a record of survival is followed no longer: known before them."""
SPREAD: Final = 0.5
"""Mean square of a number's features up to which no record counts less, in [−1, 1] of its bounds;
of one with typical values twice that of a typical record."""
INFORMATION: Final = {"logistic": 3.33, "squared": 0.7, "hazard": 0.88}
"""c in units of R over the longest H: of classes and survival the most that adds no length."""
VARIANCE: Final = 0.4
"""m in units of R over the longest ssᵀ."""


@dataclass(frozen=True)
class Coefficient:
    """One coefficient.

    Attributes:
        name: column, or ``column=level``.
        place: its feature.
        reference: feature of the reference level; −1: a number's.
        slope: change of the feature with one unit of the column.
        per: public round number of units that results are shown for.
        typical: mean square of the feature up to which no record counts less.
    """

    name: str
    place: int
    reference: int
    slope: float
    per: float
    typical: float


@dataclass(frozen=True)
class Design:
    """Coordinates of the message, in the order s, H, ssᵀ and the empty ones.

    Attributes:
        coefficients: in the order of the columns.
        references: features of all reference levels, with their names.
        task: of the model.
        width: units of the label in one of the model's; 1 but of a regression.
    """

    coefficients: tuple[Coefficient, ...]
    references: tuple[tuple[int, str], ...]
    task: Task
    width: float = 1.0

    @property
    def numbers(self) -> int:
        """Intercepts and coefficients, p."""
        return self.task.outputs + len(self.coefficients)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.numbers * (self.numbers + 2) + EMPTY

    @cached_property
    def triangle(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the upper triangle."""
        return np.triu_indices(self.numbers)

    @property
    def pattern(self) -> Floats:
        """Ones where H has numbers, shape ``(p, p)``; zeros between intercepts."""
        ones, t = np.ones((self.numbers, self.numbers)), self.task.outputs
        ones[:t, :t] = np.eye(t)
        return ones

    @property
    def residual(self) -> float:
        """Residual that counts as 1."""
        return MOST_RESIDUAL if self.task.loss == "squared" else 1.0

    def matrix(self, triangle: Floats) -> Floats:
        """Return the symmetric matrix of an upper triangle, shape ``(p, p)``."""
        upper = np.zeros((self.numbers, self.numbers))
        upper[self.triangle] = triangle
        return upper + np.triu(upper, 1).T

    @property
    def reach(self) -> float:
        """R, the length of features up to which a record counts in full."""
        levels = {c.reference for c in self.coefficients if c.reference >= 0}
        return math.sqrt(1 + len(levels) + sum(c.typical for c in self.coefficients))

    @property
    def longest(self) -> float:
        """Longest H, and ssᵀ: a triangle of R·R, whose diagonal is bounded by single features."""
        most = max(1.0, min(self.task.reach, 1e6) if self.task.scaling else 1.0)
        return math.sqrt((self.reach**4 + min(self.reach, most) ** 2 * self.reach**2) / 2)

    @property
    def factors(self) -> tuple[float, float]:
        """Both public factors, c and m."""
        unit = self.reach / self.longest
        return INFORMATION[self.task.loss] * unit, VARIANCE * unit

    @property
    def bound(self) -> float:
        """Length that the vector of a record is clipped to; in few it is a few hundredths more."""
        # Of the other losses, a record with a long score has little information.
        information = INFORMATION["squared"] ** 2 if self.task.loss == "squared" else 0.0
        return self.reach * math.sqrt(1 + information + VARIANCE**2)

    def start(self, arrays: Arrays) -> Floats:
        """Return intercepts and coefficients of a model of one linear layer, shape ``(p,)``.

        Raises:
            DataError: there are several models.
        """
        if len(arrays) != 2:
            raise DataError("'after.coefficients' is of one linear layer, and the run has more")
        weights, biases = (array.astype(np.float64) for array in arrays.values())
        weights = weights.reshape(self.task.outputs, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            levels = weights[:, [place for place, _ in self.references]].sum(1)
            of_level = weights[:, [c.place for c in self.coefficients]]
            reference = np.where(
                [c.reference >= 0 for c in self.coefficients],
                weights[:, [c.reference for c in self.coefficients]],
                0.0,
            )
            return np.concatenate([biases.ravel() + levels, (of_level - reference).mean(0)])

    def sum(self, start: Floats, records: Records) -> Floats:
        """Return the sum of the records' vectors over the bound, shape ``(size,)``.

        Args:
            start: intercepts and coefficients, shape ``(p,)``, as :meth:`start` returns them.
            records: of which each unit has one.

        Guarantees:
            One record more or less moves it by at most 1 in length, whatever it holds and whatever
            the model is: :func:`hdpfl_flower.data.record_moments.exact_sum`, of vectors that are
            computed apart.
        """
        vectors, full = partial(self.vectors, start), self.size - EMPTY
        return np.pad(exact_sum(records, full, self.bound, vectors), (0, EMPTY))

    def vectors(self, start: Floats, records: Records) -> Floats:
        """Return the records' vectors, shape ``(n, size - EMPTY)``; of hostile numbers anything."""
        t, p, n = self.task.outputs, self.numbers, len(records)
        x = records.features.reshape(n, -1).astype(np.float64)
        # By rows in memory: numpy adds the numbers of a row in an order of its own there, whether
        # it stands by itself or beside others.
        x = np.ascontiguousarray(x[:, [c.place for c in self.coefficients]])
        with np.errstate(all="ignore"):
            weights = np.minimum(1.0, self.reach**2 / (1 + np.square(x).sum(1)))[:, None]
            outputs = start[:t] + (x * start[t:]).sum(1)[:, None]
            residuals, curvatures = self._of_outputs(outputs, records.targets)
            scores = weights * np.hstack([residuals, residuals.sum(1)[:, None] * x])
            curvatures = weights * curvatures
            information = np.zeros((n, p, p))
            information[:, range(t), range(t)] = curvatures
            information[:, :t, t:] = curvatures[:, :, None] * x[:, None, :]
            curvature = curvatures.sum(1)[:, None, None]
            information[:, t:, t:] = curvature * x[:, :, None] * x[:, None, :]
            rows, columns = self.triangle
            return np.hstack([
                scores,
                self.factors[0] * information[:, rows, columns],
                self.factors[1] * scores[:, rows] * scores[:, columns],
            ])  # fmt: skip

    def _of_outputs(self, outputs: Floats, targets: np.ndarray) -> tuple[Floats, Floats]:
        """Return residuals within ±1, whose sum is, too, and curvatures; ``(n, outputs)`` each."""
        if self.task.loss == "squared":
            residuals = (targets.astype(np.float64)[:, None] - outputs) / self.residual
            return np.clip(residuals, -1, 1), (np.abs(residuals) <= 1).astype(np.float64)
        means = expit(outputs)
        if self.task.loss == "logistic":
            return targets[:, None] - means, means * (1 - means)
        interval, last = np.arange(outputs.shape[1]), targets[:, None] // 2
        followed = (interval <= last) & (means.cumsum(1) <= FOLLOWED)
        events = (interval == last) & (targets[:, None] % 2 == 1)
        return followed * (events - means), followed * means * (1 - means)


def design_of(schema_text: str, task: Task) -> Design:
    """Return the design of a run's message.

    Args:
        schema_text: of the terms; empty for arrays.
        task: of the run's model.

    Raises:
        DataError: the records are no rows, or the coefficients are more than ``MOST``.
    """
    if task.loss == "softmax" or len(task.input_shape) != 1 or task.embedding or task.body:
        raise DataError(
            "'after.coefficients' is of tables, and of two classes, a number or survival; leave "
            "it out"
        )
    layout = layout_of(schema_text, task, table=True)
    scaling = task.scaling or ((0.0, 1.0),) * task.input_shape[0]
    gain = TYPICAL_LENGTH / math.sqrt(task.input_shape[0])
    coefficients = list[Coefficient]()
    for number in layout.numbers:
        slope = 1 / (number.half * number.slope * scaling[number.place][1])
        is_typical = number.slope != 1 or scaling[number.place] != (0.0, 1.0)
        typical = 2 * gain**2 if is_typical else SPREAD
        per = 10.0 ** math.floor(math.log10(number.half)) if schema_text else 1.0
        coefficients.append(Coefficient(number.name, number.place, -1, slope, per, typical))
    references = []
    for column, first, levels in layout.groups:
        references += [(first, f"{column}={levels[0]}")] if len(levels) > 1 else []
        for place, level in enumerate(levels):
            if place or len(levels) == 1:
                reference = first if place else -1
                name = f"{column}={level}"
                coefficients.append(Coefficient(name, first + place, reference, 1.0, 1.0, 0.0))
    coefficients.sort(key=lambda c: c.place)
    width = 1.0
    if schema_text and task.loss == "squared":
        from hdpfl_flower.data.schema import Schema

        low, high = Schema.load(schema_text).label.bounds or (0.0, 1.0)
        width = high - low
    design = Design(tuple(coefficients), tuple(references), task, width)
    if design.numbers > MOST:
        raise DataError(
            f"'after.coefficients' is of at most {MOST} coefficients and intercepts, and these are "
            f"{design.numbers}; leave columns out, or the table"
        )
    return design
