"""What each rule does that no other does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from hdpfl_flower.weights import record_weights
from strategies.averaging.minimum import Minimum
from strategies.noise_aware.oracle import inverse_variance_weights
from strategies.noise_aware.robust_hdp import RobustHDP


def test_record_weights_are_shares_and_a_lie_buys_at_most_ten_medians() -> None:
    np.testing.assert_allclose(record_weights(np.array([100.0, 300.0, 600.0])), [0.1, 0.3, 0.6])
    lie = record_weights(np.array([100.0, 100.0, 100.0, 1e12]))
    np.testing.assert_allclose(lie, np.array([1, 1, 1, 10]) / 13)


def test_inverse_variance_weights_minimise_the_variance() -> None:
    generator = np.random.default_rng(0)
    variances = 10 ** generator.uniform(-6, 6, 20)
    best = inverse_variance_weights(variances)
    least = (best**2 * variances).sum()
    assert least == pytest.approx(1 / (1 / variances).sum())
    for _ in range(50):
        other = best * np.exp(0.1 * generator.standard_normal(20))
        other /= other.sum()
        assert (other**2 * variances).sum() >= least


def test_the_strictest_epsilon_becomes_everybodys_cap() -> None:
    rule = Minimum(RunConfig.parse({"strategy": "minimum"}))
    terms = rule.terms
    disclosed = {"a": {"epsilon": 3.0}, "b": {"epsilon": 0.4}, "c": {"epsilon": math.inf}}
    assert rule.propose(terms, disclosed).epsilon_cap == 0.4
    assert rule.propose(terms, {"c": {"epsilon": math.inf}}).epsilon_cap == 0.0


def test_robust_hdp_gives_a_quiet_site_the_weight() -> None:
    generator = np.random.default_rng(1)
    std = np.array([0.1, 1.0, 10.0, 10.0, 10.0])
    rows = (generator.standard_normal((5, 5_000)) * std[:, None]).astype(np.float32)
    updates = RoundUpdates(1, tuple("abcde"), rows)
    rule = RobustHDP(RunConfig())
    _, outcome = rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))
    np.testing.assert_allclose(outcome.weights, inverse_variance_weights(std**2), rtol=0.1)
    np.testing.assert_allclose(outcome.gauges["noise_std"], std, rtol=0.1)


def test_robust_hdp_gives_a_zero_update_no_weight() -> None:
    rows = np.random.default_rng(2).standard_normal((5, 500)).astype(np.float32)
    rows[3] = 0
    updates = RoundUpdates(1, tuple("abcde"), rows)
    rule = RobustHDP(RunConfig())
    _, outcome = rule.combine(rule.initial_state(), updates, RandomStream(bytes(32)))
    assert outcome.weights[3] == 0
