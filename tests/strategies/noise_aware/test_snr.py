"""SNR: its weights are the best ones for sites that agree and differ in steps and noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.noise_aware.robust_hdp import RobustHDP
from strategies.noise_aware.snr import SNR

D = 4_000
STEPS = np.array([150.0, 75.0, 75.0, 38.0, 19.0, 19.0])
NOISE = np.array([6.0, 3.0, 5.0, 4.0, 1.0, 0.7])


def updates_of(**disclosed: np.ndarray) -> RoundUpdates:
    generator = np.random.default_rng(4)
    rows = 0.01 * STEPS[:, None] * generator.standard_normal(D)
    rows = rows + NOISE[:, None] * generator.standard_normal((len(NOISE), D))
    return RoundUpdates(1, tuple("abcdef"), rows.astype(np.float32), disclosed)


def combine(rule: RobustHDP, updates: RoundUpdates) -> Outcome:
    return rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))[1]


def told() -> dict[str, np.ndarray]:
    return {"declared-records": 16 * STEPS, "batch-size": np.full(len(STEPS), 16.0)}


def best_share(weights: np.ndarray) -> float:
    """Noise of the sum over the square of its signal, above the least that any weights give."""
    ratio = float((weights**2 * NOISE**2).sum()) / float(weights @ STEPS) ** 2
    return ratio * float((STEPS**2 / NOISE**2).sum())


def test_its_weights_have_the_best_signal_to_noise() -> None:
    """Cauchy–Schwarz: no weights beat kᵢ/σᵢ²; the estimated noise costs a few percent at most."""
    outcome = combine(SNR(RunConfig()), updates_of(**told()))
    assert best_share(STEPS / NOISE**2) == pytest.approx(1)
    assert best_share(outcome.weights) < 1.03
    assert best_share(combine(RobustHDP(RunConfig()), updates_of()).weights) > 1.2
    noise_std = np.asarray(outcome.gauges["noise_std"])
    expected = STEPS / noise_std**2
    np.testing.assert_allclose(outcome.weights, expected / expected.sum(), rtol=1e-9)
    np.testing.assert_array_equal(outcome.gauges["steps"], STEPS)
    np.testing.assert_array_equal(outcome.gauges["steps_known"], 1)


def test_where_steps_are_alike_or_unknown_it_is_robust_hdp() -> None:
    plain = combine(RobustHDP(RunConfig()), updates_of())
    unknown = combine(SNR(RunConfig()), updates_of())
    same = combine(SNR(RunConfig().updated(local_steps=9)), updates_of())
    for outcome, known in ((unknown, 0), (same, 1)):
        np.testing.assert_allclose(outcome.weights, plain.weights, rtol=1e-12)
        np.testing.assert_array_equal(outcome.gauges["steps_known"], known)


def test_a_silent_site_counts_as_the_median_and_the_journal_says_so() -> None:
    facts = told()
    facts["batch-size"][0] = math.nan
    outcome = combine(SNR(RunConfig()), updates_of(**facts))
    assert np.asarray(outcome.gauges["steps"])[0] == np.median(STEPS[1:])
    np.testing.assert_array_equal(outcome.gauges["steps_known"], [0, 1, 1, 1, 1, 1])


@pytest.mark.parametrize("steps", [0, 3])
def test_it_needs_nothing_and_welcomes_what_shows_steps_and_bounds_noise(steps: int) -> None:
    rule = SNR(RunConfig().updated(local_steps=steps))
    assert rule.needs == frozenset()
    assert rule.welcomes == {"batch-size", "declared-records", "epsilon"}
