"""Paired differences: coverage of the interval, wins, ranks, and rows without common seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hdpfl_tools.measures.paired import paired

RUNS, SEEDS = 2000, 4


def coverage(scale: float) -> int:
    """Return how many of ``RUNS`` intervals, times ``scale``, hold the true difference, 1."""
    rng, covered = np.random.default_rng(5), 0
    for _ in range(RUNS):
        luck = 10 * rng.standard_normal(SEEDS)  # of the seeds, which both rows share
        rows = {
            "a": dict(enumerate(luck)),
            "b": dict(enumerate(luck + 1 + rng.standard_normal(SEEDS))),
        }
        row = paired(rows, "a", more_is_better=True)["b"]
        covered += abs(row.mean - 1) <= scale * row.margin
    return covered


def test_the_interval_holds_the_true_difference_in_95_of_100_comparisons() -> None:
    """Bounds of a binomial of rate .95 with a false alarm in a million on either side."""
    low, high = stats.binom.ppf([1e-6, 1 - 1e-6], RUNS, 0.95)
    assert low <= coverage(1) <= high
    assert coverage(0.75) < low and coverage(1.5) > high


def test_wins_and_ranks_follow_the_direction_of_the_metric() -> None:
    rows = {"a": {1: 0.5, 2: 0.5}, "b": {1: 0.6, 2: 0.4}, "c": {1: 0.7, 2: 0.5}}
    more = paired(rows, "a", more_is_better=True)
    assert [more[name].wins for name in "bc"] == [1, 1]
    assert [more[name].rank for name in "bc"] == [2.5, 1.25]
    assert paired(rows, "a", more_is_better=False)["c"].rank == 2.75
    assert paired(rows, "a", more_is_better=False)["c"].wins == 0


def test_only_common_seeds_count() -> None:
    rows = {"a": {1: 0.5, 2: 0.5}, "b": {2: 0.75, 3: 9.0}, "c": {}}
    differences = paired(rows, "a", more_is_better=True)
    assert list(differences) == ["b"]
    assert differences["b"].mean == pytest.approx(0.25)
    assert math.isnan(differences["b"].margin) and math.isnan(differences["b"].rank)
    assert differences["b"].cells() == ("+0.2500", "1 of 1", "–")


def test_a_run_that_diverged_is_the_worse_one_and_is_told() -> None:
    rows = {"a": {1: 0.5, 2: 0.6, 3: 0.7}, "b": {1: 0.6, 2: np.nan, 3: 0.8}}
    row = paired(rows, "a", more_is_better=True)["b"]
    assert (row.mean, row.wins, row.seeds, row.without) == (pytest.approx(0.1), 2, 3, 1)
    assert row.rank == pytest.approx(4 / 3)
    assert row.cells()[0].endswith(", without 1 of 3 seeds that have no result")
    row = paired(rows, "b", more_is_better=False)["a"]
    assert row.wins == 3 and row.rank == 1
    gone = paired({"a": {1: 0.5}, "b": {1: np.nan}}, "a", more_is_better=True)["b"]
    assert gone.cells() == ("–, without 1 of 1 seeds that have no result", "0 of 1", "2.0")
