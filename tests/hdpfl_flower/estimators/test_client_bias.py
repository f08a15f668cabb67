"""Weights of the least error, and the signals that they rest on."""

import numpy as np
import pytest

from hdpfl_flower.estimators.client_bias import (
    FALSE_ALARM,
    ClientDifferences,
    differences,
    least_error_weights,
)


def seen(factors):
    """ClientDifferences of which noise hides nothing."""
    return ClientDifferences(factors, np.zeros(len(factors)))


def error_of(weights, target, differ, noise):
    apart = weights - target
    bias = np.square(differ.factors.T @ apart).sum() + np.square(apart) @ differ.hidden
    return float(bias + (weights**2) @ noise)


def by_least_squares(target, differ, noise):
    """SciPy's non-negative least squares: the x ≥ 0 of the least xᵀQx + (Σx − 1)² is a multiple."""
    from scipy.optimize import nnls

    factors = np.hstack([differ.factors, np.diag(np.sqrt(differ.hidden))])
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
    for _ in range(200):
        n, r = int(generator.integers(1, 30)), int(generator.integers(0, 6))
        factors = generator.standard_normal((n, r)) * 10 ** generator.uniform(-2, 2)
        noise = 10 ** generator.uniform(-3, 3, n)
        hidden = 10 ** generator.uniform(-3, 3, n) * generator.integers(0, 2, n)
        target, differ = generator.dirichlet(np.ones(n)), ClientDifferences(factors, hidden)
        weights = least_error_weights(target, differ, noise)
        assert np.all(weights >= 0) and weights.sum() == pytest.approx(1)
        least = error_of(by_least_squares(target, differ, noise), target, differ, noise)
        assert error_of(weights, target, differ, noise) <= least * (1 + 1e-9)
        active += int((weights == 0).any())
    assert active > 20  # else the bounds were not tested


def test_without_signal_the_weights_are_those_of_least_noise():
    """Robust-HDP's: by the inverse variance."""
    noise = np.array([1.0, 4.0, 0.25])
    weights = least_error_weights(np.full(3, 1 / 3), seen(np.zeros((3, 0))), noise)
    np.testing.assert_allclose(weights, (1 / noise) / (1 / noise).sum())


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
        found += differences(sums, counts, totals).factors.shape[1] > 0
        understated += differences(sums, counts, totals / 2).factors.shape[1] > 0
    assert found <= 9
    assert understated >= 190


def test_signal_adds_up_over_the_rounds_and_noise_averages_out():
    """What one round hides, 200 show, as large as it is."""
    generator = np.random.default_rng(2)
    signals = np.outer(np.repeat([1.0, -1.0], 10), generator.standard_normal(785)) / 10
    noise = np.full(20, 1.0)
    one = differences(*sums_of(signals / 2, noise, np.ones(20), generator))
    many = differences(*sums_of(signals, noise, np.full(20, 200.0), generator))
    assert one.factors.shape[1] == 0
    assert many.factors.shape[1] == 1
    # ‖s‖² = 7.85 each, with an error of √(785)/200 = .14 and of 2‖s‖/√200 = .4, 1 sd a pair.
    np.testing.assert_allclose(many.factors @ many.factors.T, signals @ signals.T, atol=2.5)


def unit(generator):
    return np.linalg.qr(generator.standard_normal((785, 1)))[0][:, 0]


def test_a_client_does_not_differ_by_its_noise():
    """Ten quiet clients are ±s apart; two others, of a hundred times that noise, are not.

    Of 200 that do not differ 9 at most may keep some of their noise: a binomial of 1 % exceeds it
    with a chance of 3e-5.
    """
    generator, left = np.random.default_rng(3), []
    s, large = 2.8 * unit(generator), 100 * 2.8**2
    noise = np.append(np.full(10, 1e-3), [large, large])
    signals = np.vstack([np.outer(np.tile([1.0, -1.0], 5), s), np.zeros((2, 785))])
    for _ in range(100):
        found = differences(*sums_of(signals, noise, np.ones(12), generator)).factors
        assert found.shape[1] == 1
        rows = np.square(found).sum(axis=1)
        np.testing.assert_allclose(rows[:10], 2.8**2, rtol=0.1)
        left.extend(rows[10:] > 0.01 * large)
    assert FALSE_ALARM == 0.01 and sum(left) <= 9


def test_what_is_hidden_is_the_error_of_what_is_seen():
    """Of 1,000 clients as noisy as they differ, the mean square has an error of √(2/1000) = .045.

    A client in a hundred keeps all of its own: hence 20 %, four errors.
    """
    generator, errors, hidden = np.random.default_rng(5), [], []
    quiet, noise = slice(0, 30), np.append(np.full(30, 1e-4), np.ones(10))
    for _ in range(100):
        lengths = generator.standard_normal(40)
        signals = np.outer(lengths, unit(generator))
        found = differences(*sums_of(signals, noise, np.ones(40), generator))
        largest = found.factors[:, -1]  # by chance there is a second direction
        seen_at = largest * np.sign(largest[quiet] @ lengths[quiet])
        apart = (seen_at - seen_at[quiet].mean()) - (lengths - lengths[quiet].mean())
        errors.extend(np.square(apart[30:]))
        hidden.extend(found.hidden[30:])
    assert np.mean(errors) == pytest.approx(np.mean(hidden), rel=0.2)
    assert np.mean(hidden) == pytest.approx(0.5, rel=0.05)  # τ²e/(τ² + e)
