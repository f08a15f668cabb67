"""Intervals over units: their coverage, their false alarms, and what a few wins may say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.measures import bootstrap
from hdpfl_flower.measures.bootstrap import chance_of_sign, interval, paired, resampled

LEVEL = 0.95
FALSE_ALARM = 1e-4
"""Chance that one test here fails although the intervals are as they should be."""


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many intervals are made below; tails of 2.5 % need fewer draws."""
    monkeypatch.setattr(bootstrap, "DRAWS", 1000)


def mean_of(gains: np.ndarray):
    return lambda weights: (weights @ gains / weights.sum(1))[:, None]


def interval_of(gains: np.ndarray, units: np.ndarray, seed: int):
    draws = resampled(units, mean_of(gains), seed)[:, 0]
    return paired(gains, units, draws, LEVEL, seed)


def covered(draw, truth: float, repeats: int) -> int:
    """Return how many intervals of ``repeats`` samples hold the truth."""
    results = 0
    for seed in range(repeats):
        gains, units = draw(np.random.default_rng(seed))
        estimate = interval_of(gains, units, seed)
        results += estimate.low <= truth <= estimate.high
    return results


def normal(random: np.random.Generator, truth: float = 0.3):
    return random.normal(truth, 1.0, 30), np.arange(30)


def wins_and_losses(random: np.random.Generator, share: float = 0.25):
    """Two models whose accuracy is the same: as many records where the one wins as the other."""
    return random.choice([-1.0, 0.0, 1.0], 40, p=[share, 1 - 2 * share, share]), np.arange(40)


def persons(random: np.random.Generator):
    """25 persons with 1 to 9 records each, whose gains are nearly those of their person."""
    sizes = random.integers(1, 10, 25)
    units = np.repeat(np.arange(25), sizes)
    return random.normal(0, 1, 25)[units] + random.normal(0, 0.1, len(units)), units


def bounds(repeats: int) -> tuple[float, float]:
    """Return how many of ``repeats`` intervals hold the truth, if they do with 95 %."""
    return tuple(stats.binom.ppf([FALSE_ALARM, 1 - FALSE_ALARM], repeats, LEVEL))


@pytest.mark.parametrize(
    ("draw", "truth"), [(normal, 0.3), (persons, 0.0)], ids=["records", "persons"]
)
def test_intervals_hold_the_truth_as_often_as_they_say(draw, truth: float) -> None:
    """No more often either: intervals of twice the width would hold it nearly always."""
    least, most = bounds(600)
    assert least <= covered(draw, truth, 600) <= most


def test_where_there_is_no_difference_one_is_seldom_found() -> None:
    """The sign-flip test makes this rarer than in 5 of 100: wins are whole records."""
    assert covered(wins_and_losses, 0.0, 600) >= bounds(600)[0]
    assert covered(lambda random: wins_and_losses(random, 0.05), 0.0, 600) >= bounds(600)[0]


def test_all_records_of_a_unit_are_drawn_together() -> None:
    units = np.array([7, 3, 7, 7, 3, 9])
    seen: list[np.ndarray] = []

    def note(weights: np.ndarray) -> np.ndarray:
        seen.append(weights)
        return weights.sum(1)[:, None]

    totals = resampled(units, note, 1)[:, 0]
    weights = np.concatenate(seen)
    assert np.array_equal(weights[:, 0], weights[:, 2])
    assert np.array_equal(weights[:, 0], weights[:, 3])
    assert np.array_equal(weights[:, 1], weights[:, 4])
    # Three units are drawn each time, with replacement; each is expected once.
    assert np.array_equal(weights[:, [0, 1, 5]].sum(1), np.full(len(weights), 3.0))
    assert totals.max() == 9.0  # the person of three records, three times
    assert totals.min() == 3.0
    # A weight is Binomial(3, 1/3); its mean over 1000 draws within 4 of its deviations.
    assert np.abs(weights.mean(0) - 1).max() < 4 * math.sqrt(2 / 3 / len(weights))


def test_flips_move_a_person_as_one() -> None:
    """Eight records that all win say as much as their one person, which is nothing."""
    gains = np.ones(8)
    assert chance_of_sign(gains, np.zeros(8, np.int64), 1) == 1.0
    assert chance_of_sign(gains, np.arange(8), 1) < 0.02
    assert chance_of_sign(np.zeros(8), np.arange(8), 1) == 1.0


def test_the_tails_of_few_units_are_those_of_students_t() -> None:
    """t of 7 degrees leaves 2.5 % above 2.365 (any table); √(8/7) times that, a normal 0.57 %."""
    results = interval(0.5, np.linspace(0, 1, 10_001), 8, LEVEL)
    assert results.low == pytest.approx(stats.norm.cdf(-2.3646 * math.sqrt(8 / 7)), abs=1e-4)
    assert results.high == pytest.approx(1 - results.low, abs=1e-9)


def test_one_unit_limits_nothing_and_a_value_that_is_none_neither() -> None:
    draws = resampled(np.zeros(5, np.int64), mean_of(np.ones(5)), 1)[:, 0]
    single = interval(1.0, draws, 1, LEVEL)
    undefined = interval(math.nan, draws * math.nan, 9, LEVEL)
    for estimate in (single, undefined):
        assert (estimate.low, estimate.high) == (-math.inf, math.inf)
        assert not estimate.above
        assert not estimate.below
