"""What is learned of spread and gaps: unbiased, cautious, and forgotten in time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies.fedhdp.level_gaps import observe_gaps, observed_gaps, spread, sure_gaps


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
