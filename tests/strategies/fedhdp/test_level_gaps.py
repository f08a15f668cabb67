"""What is learned of spread and gaps: unbiased, cautious, and forgotten in time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies.fedhdp.level_gaps import (
    DECAY,
    MARGIN,
    average,
    observe,
    observe_gaps,
    observed_gaps,
    spread,
    sure_gaps,
)

SEEN = np.array([True])


def repeated(values: list[float]) -> float:
    state: dict[str, np.ndarray] = {}
    for value in values:
        state = dict(observe(state, "x", np.array([value]), SEEN))
    return float(average(state, "x", (1,))[0])


def test_a_constant_is_its_own_average_from_the_first_round() -> None:
    assert repeated([3.0]) == pytest.approx(3.0)
    assert repeated([3.0] * 7) == pytest.approx(3.0)


def test_old_rounds_are_forgotten() -> None:
    assert repeated([100.0] * 5 + [1.0] * 120) == pytest.approx(1.0, abs=0.5)


def test_what_was_not_seen_is_unknown_and_stays_out() -> None:
    state = observe({}, "x", np.array([1.0, np.nan]), np.array([True, False]))
    state = observe(state, "x", np.array([np.nan, np.nan]), np.array([False, False]))
    mean = average(state, "x", (2,))
    assert mean[0] == pytest.approx(1.0)
    assert math.isnan(mean[1])


def test_spread_is_the_unbiased_variance() -> None:
    rows = np.random.default_rng(2).normal(0, 2, (500, 30)).astype(np.float32)
    assert spread(rows, rows.mean(0).astype(np.float64)) == pytest.approx(4 * 30, rel=0.05)
    assert math.isnan(spread(rows[:1], rows[0].astype(np.float64)))


def test_the_gap_is_free_of_noise_on_average_and_noise_alone_is_no_gap() -> None:
    generator, size = np.random.default_rng(3), 2000
    true = np.zeros((2, size))
    true[1, 0] = 1.0
    variances = np.array([0.5, 2.0])
    std = np.sqrt(variances / size)[:, None]
    state: dict[str, np.ndarray] = {}
    empty: dict[str, np.ndarray] = {}
    both = np.ones((2, 2), bool)
    for _ in range(60):
        noise = std * generator.standard_normal((2, size))
        state = dict(observe_gaps(state, "gap", observed_gaps(true + noise, variances), both))
        empty = dict(observe_gaps(empty, "gap", observed_gaps(noise, variances), both))
    assert 0.8 < sure_gaps(state, "gap", 2)[0, 1] < 1.2
    assert sure_gaps(empty, "gap", 2)[0, 1] < 0.05
    raw = ((true[0] - true[1]) ** 2).sum() + variances.sum()
    assert raw > 3  # what a gap would be with the noise left in


def test_what_may_be_noise_alone_is_no_gap() -> None:
    """The average less its errors, found from the rounds that it is made of."""
    values, state = [9.0, -1.0, 7.0, -3.0, 8.0], {}
    for value in values:
        gaps = np.array([[0.0, value], [value, 0.0]])
        state = observe_gaps(state, "gap", gaps, np.ones((2, 2), bool))
    weights = DECAY ** np.arange(len(values))[::-1]
    weights /= weights.sum()
    mean = weights @ values
    error = np.sqrt((weights @ np.square(values) - mean**2) * np.square(weights).sum())
    assert mean == pytest.approx(4.0, rel=0.05)
    assert sure_gaps(state, "gap", 2)[0, 1] == max(0.0, mean - MARGIN * error) == 0.0
    state = observe_gaps(state, "gap", np.full((2, 2), 30.0), np.ones((2, 2), bool))
    weights = DECAY ** np.arange(6)[::-1]
    weights /= weights.sum()
    mean = weights @ [*values, 30.0]
    error = np.sqrt((weights @ np.square([*values, 30.0]) - mean**2) * np.square(weights).sum())
    assert error > 1
    assert sure_gaps(state, "gap", 2)[0, 1] == pytest.approx(max(0.0, mean - MARGIN * error))


def test_nothing_seen_is_no_gap() -> None:
    assert not sure_gaps({}, "gap", 3).any()
