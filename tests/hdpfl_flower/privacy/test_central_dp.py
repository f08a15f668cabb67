"""Noise at a trusted server: enough of it, on every sum, whoever came."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.linalg.sums import square_sum
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of, interval_for
from hdpfl_flower.privacy.adaptive_clipping import joint_multiplier
from hdpfl_flower.privacy.central_dp import (
    CentralPlan,
    clipped_sum,
    make_central_plan,
    mean_variance,
    noisy_mean,
)
from hdpfl_flower.privacy.clipped_update import clip_update
from hdpfl_flower.privacy.noise import RandomStream

ALARM = 1e-9
"""Share of healthy builds that a statistical test here fails."""


def plan_of(epsilons: tuple[float, ...] = (math.inf, 2.0), bit_noise: float = 5.0) -> CentralPlan:
    return make_central_plan(epsilons, (10, 90), 1e-4, 0.1, 3, bit_noise)


def test_every_level_gets_its_epsilon_with_the_bits_paid() -> None:
    plan = plan_of((8.0, 2.0))
    for level in plan.levels:
        joint = joint_multiplier(level.noise_multiplier, plan.bit_noise)
        event = event_of((Steps(0.1, 3),), joint)
        spent = epsilon_of(event, 1e-4, interval_for(level.epsilon, 3))
        assert 0.98 * level.epsilon < spent <= level.epsilon
    assert plan.levels[0].noise_multiplier < plan.levels[1].noise_multiplier


def test_opted_out_clients_get_none_and_the_report_can_tell() -> None:
    loose, strict = plan_of().levels
    assert (loose.private, loose.noise_multiplier) == (False, 0.0)
    assert strict.private
    assert strict.expected == pytest.approx(9.0)


def test_the_bits_of_a_strict_level_get_more_noise() -> None:
    plan = make_central_plan((0.1,), (100,), 1e-5, 1.0, 50, 5.0)
    assert plan.bit_noise > 5
    assert make_central_plan((0.1,), (100,), 1e-5, 1.0, 50, 0.0).bit_noise == 0


def test_the_bits_have_noise_for_the_strictest_of_all_levels() -> None:
    """All bits go into one sum: its noise is 3.5 times what the strictest level asks for."""
    plan = make_central_plan((2.0, 1.0), (10, 90), 1e-5, 1.0, 5, 1.0)
    strictest = calibrate((Steps(1.0, 5),), 1.0, 1e-5)
    assert plan.bit_noise == 3.5 * strictest > 1.0


@pytest.mark.parametrize("row", [[3.0, 4.0], [1e30, 1e30], [0.0, 0.0], [0.6, 0.8]])
def test_one_update_counts_for_no_more_than_the_clip_norm(row: list[float]) -> None:
    rows = np.array([row, [0.1, -0.2]], np.float32)
    with_it, _ = clipped_sum(rows, 1.0)
    without, _ = clipped_sum(rows[1:], 1.0)
    assert np.linalg.norm(with_it - without) <= 1.0


def test_norms_that_are_known_give_the_same_bits_and_are_not_taken_again() -> None:
    rows = np.random.default_rng(2).standard_normal((6, 300)).astype(np.float32)
    rows[3] *= 1e-3
    squares, chosen = np.array([square_sum(row) for row in rows]), np.array([4, 1, 3])
    asked, within = clipped_sum(rows, 2.0, chosen)
    told, told_within = clipped_sum(rows, 2.0, chosen, squares)
    assert np.array_equal(told, asked)
    assert told_within == within == 1
    louder, _ = clipped_sum(rows, 2.0, chosen, 4 * squares)
    assert not np.array_equal(louder, asked)  # the rows' own norms were not looked at


def test_what_is_not_finite_counts_for_nothing() -> None:
    assert not clip_update(np.array([np.nan, 1.0]), 1.0).any()
    assert not clip_update(np.array([np.inf, 1.0]), 1.0).any()


def test_the_bit_is_told_from_an_update_that_the_site_clipped() -> None:
    generator = np.random.default_rng(1)
    raw = generator.standard_normal((200, 50)) * generator.uniform(0.01, 0.4, (200, 1))
    bits = int((np.linalg.norm(raw, axis=1) <= 1.0).sum())
    sent = np.array([clip_update(row, 1.0) for row in raw], np.float32)
    assert 0 < bits < 200
    assert clipped_sum(sent, 1.0)[1] == bits


@pytest.mark.parametrize("came", [0, 3])
def test_the_noise_has_its_std_also_where_nobody_came(came: int) -> None:
    """χ² of 40,000 coordinates about a sum that is known here, at the stated false-alarm rate."""
    level, size = plan_of().levels[1], 40_000
    total = np.full(size, 0.25 * came / math.sqrt(size))
    mean = noisy_mean(total, level, 0.5, RandomStream(bytes(range(32))))
    noise = mean * level.expected - total
    std = level.noise_multiplier * 0.5
    low, high = (float(stats.chi2.ppf(p, size)) for p in (ALARM / 2, 1 - ALARM / 2))
    found = float((noise**2).sum())
    assert low < found / std**2 < high
    for wrong in (0.9, 1.1):
        assert not low < found / (wrong * std) ** 2 < high


def test_the_predicted_variance_of_a_mean_covers_what_happens() -> None:
    level, size, clip_norm = plan_of().levels[1], 200, 0.5
    generator, stream = np.random.default_rng(2), RandomStream(bytes(32))
    direction = np.zeros((level.clients, size))
    direction[:, 0] = clip_norm * (1 - 1e-6)
    means = []
    for _ in range(400):
        came = generator.random(level.clients) < 0.1
        means.append(noisy_mean(direction[came].sum(0), level, clip_norm, stream))
    expected = direction.mean(0)
    found = float(np.mean([((mean - expected) ** 2).sum() for mean in means]))
    predicted = mean_variance(level, clip_norm, size)
    assert 0.8 * predicted < found < 1.05 * predicted
