"""Deficits between strategies: seed-by-seed differences and the worst case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Accuracies = Mapping[str, Sequence[float]]
"""Strategy → accuracy in percent, one per seed.

All strategies have the same seeds in the same order.
"""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two strategies over the same seeds, in points.

    Attributes:
        mean: over the seeds.
        error: standard error of the mean, √(s²/n) with s² of n − 1; NaN for one seed.
    """

    mean: float
    error: float

    @property
    def is_established(self) -> bool:
        """Whether it is at least two standard errors from 0.

        Never for one seed.

        By Student's t, equal strategies with normal differences pass to one side by chance with
        probability .148 for 2 seeds, .092 for 3 and .030 for 20.

        >>> Difference(1.0, 0.4).is_established, Difference(-1.0, 0.6).is_established
        (True, False)
        >>> Difference(1.0, math.nan).is_established
        False
        """
        return abs(self.mean) >= 2 * self.error


@dataclass(frozen=True)
class Worst:
    """Case in which a strategy is furthest behind.

    Attributes:
        case: its label.
        difference: the strategy less the other one.
        other: the leading strategy.
    """

    case: str
    difference: Difference
    other: str


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """Return ``values`` less ``others``, seed by seed.

    Raises:
        ValueError: they do not have the same seeds.

    >>> difference([81.0, 83.0], [80.0, 81.0])
    Difference(mean=1.5, error=0.5)
    """
    gaps = np.array([a - b for a, b in zip(values, others, strict=True)])
    error = float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    return Difference(float(gaps.mean()), error)


def best_other(accuracies: Accuracies, rule: str) -> str | None:
    """Return the strategy other than ``rule`` with the best mean, or None.

    >>> best_other({"a": [80.0], "b": [82.0], "c": [81.0]}, "b")
    'c'
    """
    others = [name for name in accuracies if name != rule]
    return max(others, key=lambda name: float(np.mean(accuracies[name])), default=None)


def to_best(accuracies: Accuracies, rule: str) -> tuple[str, Difference] | None:
    """Return the best other strategy, and ``rule`` less it."""
    other = best_other(accuracies, rule)
    return None if other is None else (other, difference(accuracies[rule], accuracies[other]))


def to_rule(accuracies: Accuracies, rule: str, other: str) -> tuple[str, Difference] | None:
    """Return ``other``, and ``rule`` less it, or None.

    None: one of them is missing, or both are the same.

    >>> to_rule({"a": [80.0], "b": [82.0]}, "b", "a")
    ('a', Difference(mean=2.0, error=nan))
    """
    if rule == other or not {rule, other} <= accuracies.keys():
        return None
    return other, difference(accuracies[rule], accuracies[other])


def worst(to_others: Mapping[str, tuple[str, Difference] | None]) -> Worst | None:
    """Return the case with the least mean difference, or None.

    Args:
        to_others: case → the other strategy and the difference to it.

    >>> worst({"x": ("b", Difference(0.5, 0.1)), "y": ("c", Difference(-2.0, 0.1)), "z": None})
    Worst(case='y', difference=Difference(mean=-2.0, error=0.1), other='c')
    """
    pairs = {case: pair for case, pair in to_others.items() if pair is not None}
    if not pairs:
        return None
    case = min(pairs, key=lambda name: pairs[name][1].mean)
    return Worst(case, pairs[case][1], pairs[case][0])


def established(to_others: Mapping[str, tuple[str, Difference] | None], points: float) -> int:
    """Return the cases with an established deficit of over ``points``.

    Their number, by two standard errors.

    The two standard errors are of the difference from 0.

    >>> far, near, unsure = Difference(-2.0, 0.1), Difference(-0.4, 0.1), Difference(-2.0, 1.1)
    >>> established({"x": ("b", far), "y": ("b", near), "z": ("b", unsure)}, 0.5)
    1
    """
    differences = [pair[1] for pair in to_others.values() if pair is not None]
    return sum(gap.mean < -points and gap.is_established for gap in differences)
