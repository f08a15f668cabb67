"""Weights of the least error, and the signals that they rest on."""

import numpy as np
import pytest

from hdpfl_flower.estimators.client_bias import difference_factors, least_error_weights


def error_of(weights, target, factors, noise):
    return float(np.square(factors.T @ (weights - target)).sum() + (weights**2) @ noise)


def by_least_squares(target, factors, noise):
    """SciPy's non-negative least squares: the x ≥ 0 of the least xᵀQx + (Σx − 1)² is a multiple."""
    from scipy.optimize import nnls

    of_bias = factors.T - np.outer(factors.T @ target, np.ones(len(target)))
    rows = np.vstack([of_bias, np.diag(np.sqrt(noise))])
    rows /= np.linalg.norm(rows @ target)
    system = np.vstack([rows, np.ones(len(target))])
    found, _ = nnls(system, np.append(np.zeros(len(rows)), 1.0))
    return found / found.sum()


def test_weights_are_those_of_scipys_non_negative_least_squares():
    """Noise and signals over many orders, active and inactive bounds."""
    generator = np.random.default_rng(0)
    active = 0
    for _ in range(100):
        n, r = int(generator.integers(1, 30)), int(generator.integers(0, 6))
        factors = generator.standard_normal((n, r)) * 10 ** generator.uniform(-2, 2)
        noise = 10 ** generator.uniform(-3, 3, n)
        target = generator.dirichlet(np.ones(n))
        weights = least_error_weights(target, factors, noise)
        assert np.all(weights >= 0) and weights.sum() == pytest.approx(1)
        best = by_least_squares(target, factors, noise)
        least = error_of(best, target, factors, noise)
        assert error_of(weights, target, factors, noise) <= least * (1 + 1e-9)
        active += int((weights == 0).any())
    assert active > 20  # else the bounds were not tested


def test_without_signal_the_weights_are_those_of_least_noise():
    """Robust-HDP's: by the inverse variance."""
    noise = np.array([1.0, 4.0, 0.25])
    weights = least_error_weights(np.full(3, 1 / 3), np.zeros((3, 0)), noise)
    np.testing.assert_allclose(weights, (1 / noise) / (1 / noise).sum())


def test_without_noise_the_weights_are_the_target():
    """FedAvg's, where every client has a signal of its own."""
    target = np.array([0.5, 0.3, 0.2])
    weights = least_error_weights(target, 1e4 * np.eye(3), np.full(3, 1e-3))
    np.testing.assert_allclose(weights, target, atol=1e-6)


def test_clients_of_the_same_signal_replace_each_other():
    """A noisy client's part goes to a quiet one of its own signal, not to one of another."""
    factors = 100 * np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    weights = least_error_weights(np.full(3, 1 / 3), factors, np.array([1e-2, 1.0, 0.1]))
    assert weights[2] == pytest.approx(1 / 3, abs=1e-3)
    assert weights[0] / weights[1] == pytest.approx(100, rel=1e-2)


def sums_of(signals, noise, rounds, generator):
    n, d = signals.shape
    noises = np.sqrt(noise * rounds)[:, None] * generator.standard_normal((n, d))
    return rounds[:, None] * signals + noises, rounds, noise * rounds


@pytest.mark.parametrize(("n", "d"), [(20, 785), (4, 65), (60, 300)])
def test_noise_alone_has_no_directions_but_at_the_stated_rate(n, d):
    """Of 200 draws 9 at most: a binomial of 1 % exceeds it with a chance of 3e-5.

    With half of the noise stated, all draws have one.
    """
    generator, found, understated = np.random.default_rng(n), 0, 0
    for _ in range(200):
        noise = 10 ** generator.uniform(-2, 2, n)
        rounds = generator.integers(1, 30, n).astype(float)
        sums, counts, totals = sums_of(np.zeros((n, d)), noise, rounds, generator)
        found += difference_factors(sums, counts, totals).shape[1] > 0
        understated += difference_factors(sums, counts, totals / 2).shape[1] > 0
    assert found <= 9
    assert understated >= 190


def test_signal_adds_up_over_the_rounds_and_noise_averages_out():
    """What one round hides, 200 show, as large as it is."""
    generator = np.random.default_rng(2)
    signals = np.outer(np.repeat([1.0, -1.0], 10), generator.standard_normal(785)) / 10
    noise = np.full(20, 1.0)
    one = difference_factors(*sums_of(signals / 2, noise, np.ones(20), generator))
    many = difference_factors(*sums_of(signals, noise, np.full(20, 200.0), generator))
    assert one.shape[1] == 0
    assert many.shape[1] == 1
    # ‖s‖² = 7.85 each, with an error of √(785)/200 = .14 and of 2‖s‖/√200 = .4, 1 sd a pair.
    np.testing.assert_allclose(many @ many.T, signals @ signals.T, atol=2.5)
