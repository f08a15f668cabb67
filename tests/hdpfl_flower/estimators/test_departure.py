"""Sum of what weights move a model apart from the target's, and how much of it is kept."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.estimators.departure import Departure

PARTS = [(0, slice(0, 200)), (1, slice(200, 300)), (0, slice(300, 600))]
SIZES = np.array([500, 100])
NOISE = np.append(np.full(17, 1.0), np.full(3, 1e-3))
"""Variances a coordinate."""
TARGET, LEAST = np.full(20, 1 / 20), (1 / NOISE) / (1 / NOISE).sum()


def of_round(
    step: np.ndarray, noise: np.ndarray = NOISE, p: np.ndarray = LEAST, sizes: np.ndarray = SIZES
) -> Departure:
    apart, target, own = (np.square(w) @ noise for w in (p - TARGET, TARGET, p))
    factors = {"first": np.full(2, p[0] - TARGET[0])}
    return Departure(step.astype(np.float32), sizes * apart, sizes * target, sizes * own, factors)


def draw(generator: np.random.Generator, p: np.ndarray = LEAST, noise: np.ndarray = NOISE):
    """One round's noise of p's move and of the target's."""
    uploads = generator.standard_normal((20, SIZES.sum())) * np.sqrt(noise)[:, None]
    return p @ uploads, TARGET @ uploads


def test_the_noise_of_any_share_is_that_of_the_moves():
    """Of 200 draws of 600 coordinates the mean square has an error of √(2/120,000) = .4 %."""
    generator = np.random.default_rng(1)
    moves = [draw(generator) for _ in range(200)]
    expected = of_round(np.zeros(600)).plus(of_round(np.zeros(600)).scaled(2.0))
    for shares in ([0.0, 0.0], [0.3, 0.9], [1.0, 1.0]):
        of_all = np.empty(600)
        for block, part in PARTS:
            of_all[part] = shares[block]
        found = np.mean([np.square((1 - of_all) * q + of_all * p).sum() for p, q in moves])
        assert expected.noise_at(np.array(shares)) == pytest.approx(5 * found, rel=0.02)


def test_a_bias_is_taken_back_once_its_sum_is_above_the_noise():
    """Three quiet clients are 1.2 away: a round's bias is .85·1.2 long.

    Its sum over t rounds grows like t, and the noise like √t: .85·1.2·√t against √(600·17)/20 = 5.
    """
    generator, away = np.random.default_rng(2), np.full(600, 0.85 * 1.2 / np.sqrt(600))
    total, shares = None, []
    for _ in range(30):
        own, target = draw(generator)
        one = of_round(own - target + away)
        total = one if total is None else total.plus(one)
        shares.append(total.shares(PARTS, 30))
    assert min(shares[0]) > 0.9
    assert np.max(shares[-10:]) < 0.01


@pytest.mark.parametrize("rounds", [3, 12, 30])
@pytest.mark.parametrize(("quiet", "most", "costs"), [(0.07, 0.25, 0.11), (0.01, 0.03, 0.1)])
@pytest.mark.parametrize("size", [14, 100])
def test_noise_alone_takes_half_back_in_few_runs(rounds, quiet, most, costs, size):
    """It costs 1.6 times p's noise, and 12.6 times: α/2 = .2 and .016; up to .25 and .03 occur.

    One block, whose tests are one. Of 400 runs; a binomial of ``most`` exceeds three standard
    deviations with a chance of 3e-3. All moves together cost less noise than ``costs``.
    """
    noise = np.append(np.full(17, 1.0), np.full(3, quiet))
    least = (1 / noise) / (1 / noise).sum()
    generator, moved, total = np.random.default_rng(rounds), 0, 0.0
    sizes, parts = np.array([size]), [(0, slice(0, size))]
    deviation = np.sqrt(np.square(least - TARGET) @ noise)
    for _ in range(400):
        sums, alarms = None, 0
        for _ in range(rounds):
            step = generator.standard_normal(size) * deviation
            one = of_round(step, noise, least, sizes)
            sums = one if sums is None else sums.plus(one)
            shares = sums.shares(parts, rounds)
            alarms += shares[0] < 0.5
            total += sums.noise_at(shares) / sums.of_own[0] / (400 * rounds)
        moved += alarms > 0
    assert moved <= 400 * most + 3 * np.sqrt(400 * most * (1 - most))
    assert total < 1 + costs
