"""Bootstrap intervals over units, with an exact test of 0.

A unit (a row, or a person with several records) is drawn whole: its records are not independent,
and an interval over records would be too narrow by up to the root of their number.

The interval is the percentile interval with the tails of Student's t in place of the normal ones
(Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 2015, §4.1.2,
"expanded percentile"): the plain one is too narrow for few units. With few wins and no loss nearly
every resample is a win, although a coin gives four equal results in 1 of 8 cases. So an interval
without 0 is extended to 0 unless the sign-flip test over units rejects it at the same level
(Fisher, The Design of Experiments, 1935, §21; exact if units can be exchanged in sign, as for wins
and losses without a difference). A longer interval covers no less: if few records differ, 0 is
left out in fewer cases than the level allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit  # scipy.stats takes .6 s to import

Floats = npt.NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Function of record counts ``(c, n)`` to values ``(c, k)``, NaN if undefined."""

DRAWS = 10_000
"""Resamples and sign flips, enough for tails of 0.1 %."""
_AT_ONCE = 4_000_000
"""Maximum weights in memory: 32 MB."""


@dataclass(frozen=True)
class Estimate:
    """Value with its interval; unlimited ends are infinite."""

    value: float
    low: float
    high: float

    def facts(self) -> dict[str, float | None]:
        """Return value and ends for JSON; null where they are not finite."""
        ends = {"value": self.value, "low": self.low, "high": self.high}
        return {name: end if math.isfinite(end) else None for name, end in ends.items()}

    @property
    def above(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low > 0

    @property
    def below(self) -> bool:
        """Whether the interval lies below 0."""
        return self.high < 0


def resampled(
    units: npt.NDArray[np.int64], statistic: Statistic, seed: int, number_of_draws: int = 0
) -> Floats:
    """Return a statistic on resamples of the units, shape ``(draws, k)``.

    Args:
        units: the unit of each record, shape ``(n,)``, n ≥ 1.
        statistic: of the drawn records; k values.
        seed: of the draws; one seed draws the same units, so that differences are paired.
        number_of_draws: resamples; 0: :data:`DRAWS`.
    """
    members, number = np.unique(units, return_inverse=True)
    random = np.random.default_rng(seed)
    values = []
    for count in _portions(len(units), number_of_draws or DRAWS):
        # A unit is drawn whole: each of its records counts as often as the unit.
        drawn = random.integers(len(members), size=(count, len(members)))
        drawn += len(members) * np.arange(count)[:, None]
        times = np.bincount(drawn.ravel(), minlength=count * len(members))
        values.append(statistic(times.reshape(count, -1)[:, number].astype(np.float64)))
    return np.concatenate(values)


def interval(value: float, draws: Floats, units: int, level: float) -> Estimate:
    """Return ``value`` with its expanded percentile interval.

    Args:
        value: of the records as they are.
        draws: of the resamples, shape ``(draws,)``; NaN are left out.
        units: their number; fewer than 2 give infinite ends.
        level: between 0 and 1.
    """
    finite = draws[np.isfinite(draws)]
    if units < 2 or not len(finite) or not math.isfinite(value):
        return Estimate(value, -math.inf, math.inf)
    # The quantile of t, stretched by the bootstrap's missing √(n / (n − 1)), as a normal tail.
    reach = math.sqrt(units / (units - 1)) * stdtrit(units - 1, (1 - level) / 2)
    tail = float(ndtr(reach))
    low, high = np.quantile(finite, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def paired(
    gains: Floats,
    units: npt.NDArray[np.int64],
    draws: Floats,
    level: float,
    seed: int,
    *,
    largest: float = 0.0,
) -> Estimate:
    """Return a mean gain with its interval, extended to an allowed 0.

    The exact test decides whether 0 is allowed.

    Args:
        gains: of each record, shape ``(n,)``: above 0 where the first model is better.
        units: the unit of each record, shape ``(n,)``.
        draws: the mean gain on the resamples, shape ``(draws,)``.
        level: between 0 and 1.
        seed: of the flips.
        largest: the largest possible gain, if different models may score alike on all of few
            records, as with accuracy; 0: models with equal scores everywhere are one model.

    Guarantees:
        The interval holds 0 wherever the sign-flip test does not reject a gain of 0 at ``level``.
    """
    number = len(np.unique(units))
    estimate = interval(float(gains.mean()), draws, number, level)
    if not gains.any() and number > 1:
        # No unit differs here, but a share up to 1 − α^(1/n) of other units may.
        reach = largest * (1 - (1 - level) ** (1 / number))
        return Estimate(0.0, -reach, reach)
    if chance_of_sign(gains, units, seed) <= 1 - level:
        return estimate
    return Estimate(estimate.value, min(estimate.low, 0.0), max(estimate.high, 0.0))


def chance_of_sign(gains: Floats, units: npt.NDArray[np.int64], seed: int) -> float:
    """Return the two-sided p-value of no gain, by random sign flips of units.

    Args:
        gains: of each record, shape ``(n,)``.
        units: the unit of each record, shape ``(n,)``; all records of one flip together.
        seed: of the flips.

    Returns:
        At least 1 / (DRAWS + 1), the sample itself counted as one of the flips.
    """
    of_units = np.bincount(np.unique(units, return_inverse=True)[1], weights=gains)
    moving = of_units[of_units != 0]
    if not len(moving):
        return 1.0
    random, least = np.random.default_rng(seed), abs(moving.sum()) * (1 - 1e-9)
    as_far = 1
    for count in _portions(len(moving), DRAWS):
        signs = random.integers(2, size=(count, len(moving)), dtype=np.int8) * 2 - 1
        as_far += int((np.abs(signs @ moving) >= least).sum())
    return as_far / (DRAWS + 1)


def _portions(records: int, draws: int) -> Iterator[int]:
    """Yield resample counts that fit in memory and sum to ``draws``."""
    most, left = max(1, _AT_ONCE // records), draws
    while left > 0:
        yield min(most, left)
        left -= most
