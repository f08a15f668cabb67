"""Paired differences of rows that share their seeds: intervals, wins, ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95

Results = Mapping[str, Mapping[int, float]]
"""Row → seed → result; NaN: the run has none, as one that diverged. A missing run is absent."""


@dataclass(frozen=True)
class Paired:
    """A row's difference to another one, over the seeds of both.

    Attributes:
        mean: of the differences, over the seeds where both rows have a result; NaN without one.
        margin: half the width of its interval, Student's t at ``LEVEL``; NaN of one seed.
        wins: seeds with the better result; one without a result is the worse.
        seeds: that both rows have.
        rank: mean rank among all rows, 1 the best, ties shared, over the seeds of all rows.
        without: seeds where one of both has no result.
    """

    mean: float
    margin: float
    wins: int
    seeds: int
    rank: float
    without: int = 0

    def cells(self) -> tuple[str, str, str]:
        """Return difference with interval, wins and rank, as text."""
        difference = "–" if math.isnan(self.mean) else f"{self.mean:+.4f}"
        if not math.isnan(self.margin):
            difference += f" [{self.mean - self.margin:+.4f}, {self.mean + self.margin:+.4f}]"
        if self.without:
            difference += f", without {self.without} of {self.seeds} seeds that have no result"
        rank = "–" if math.isnan(self.rank) else f"{self.rank:.1f}"
        return difference, f"{self.wins} of {self.seeds}", rank


def paired(results: Results, baseline: str, *, more_is_better: bool) -> dict[str, Paired]:
    """Return each row's difference to ``baseline``, which is left out, as are rows without seeds.

    The interval holds the mean of all possible seeds in 95 of 100 such comparisons if the
    differences are near a normal distribution. It is of one row alone: of many rows some lie
    outside by chance.

    >>> rows = {"a": {1: 0.5, 2: 0.6}, "b": {1: 0.6, 2: 0.8}}
    >>> paired(rows, "a", more_is_better=True)["b"].cells()
    ('+0.1500 [-0.4853, +0.7853]', '2 of 2', '1.0')
    """
    sign = 1 if more_is_better else -1
    ranks = _mean_ranks(
        {row: {seed: _cost(sign * x) for seed, x in of.items()} for row, of in results.items()}
    )
    differences = dict[str, Paired]()
    for row, of in results.items():
        seeds = sorted(of.keys() & results[baseline].keys())
        if row == baseline or not seeds:
            continue
        other = results[baseline]
        gaps = np.array([of[seed] - other[seed] for seed in seeds])
        gaps = gaps[np.isfinite(gaps)]
        mean, margin = float(gaps.mean()) if len(gaps) else math.nan, math.nan
        if len(gaps) > 1:
            quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(gaps) - 1))
            margin = quantile * float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
        wins = sum(_cost(sign * of[seed]) < _cost(sign * other[seed]) for seed in seeds)
        without = len(seeds) - len(gaps)
        differences[row] = Paired(mean, margin, wins, len(seeds), ranks[row], without)
    return differences


def _cost(result: float) -> float:
    return math.inf if math.isnan(result) else -result


def _mean_ranks(costs: Results) -> dict[str, float]:
    """Return each row's mean rank, the least cost first; NaN without a seed of all rows."""
    seeds = sorted(set[int].intersection(*(set(of) for of in costs.values())))
    if not seeds:
        return dict.fromkeys(costs, math.nan)
    by_row = np.array([[of[seed] for seed in seeds] for of in costs.values()])
    means = stats.rankdata(by_row, axis=0).mean(axis=1)
    return dict(zip(costs, means.tolist(), strict=True))
