"""Weights of the least error, and the signals that they rest on."""

import numpy as np
import pytest

from hdpfl_flower.estimators.client_bias import Differences, differences, least_error_weights


def seen(factors):
    return Differences(np.asarray(factors), np.zeros(len(factors)))


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
        hidden = 10 ** generator.uniform(-3, 6, n) * (generator.random(n) < generator.random())
        differ = Differences(factors, hidden)
        noise = 10 ** generator.uniform(-3, 3, n)
        target = generator.dirichlet(np.ones(n))
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


def test_without_noise_the_weights_are_the_target():
    """FedAvg's, where every client has a signal of its own."""
    target = np.array([0.5, 0.3, 0.2])
    weights = least_error_weights(target, seen(1e4 * np.eye(3)), np.full(3, 1e-3))
    np.testing.assert_allclose(weights, target, atol=1e-6)


def test_clients_of_the_same_signal_replace_each_other():
    """A noisy client's part goes to a quiet one of its own signal, not to one of another."""
    factors = 100 * np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    weights = least_error_weights(np.full(3, 1 / 3), seen(factors), np.array([1e-2, 1.0, 0.1]))
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
        differ = differences(sums, counts, totals)
        found += differ.factors.shape[1] > 0
        assert differ.hidden.any() == bool(differ.factors.shape[1])
        understated += differences(sums, counts, totals / 2).factors.shape[1] > 0
    assert found <= 9
    assert understated >= 190


def test_signal_adds_up_over_the_rounds_and_noise_averages_out():
    """What one round hides, 200 show, as large as it is."""
    generator = np.random.default_rng(2)
    signals = np.outer(np.repeat([1.0, -1.0], 10), generator.standard_normal(785)) / 10
    noise = np.full(20, 1.0)
    one = differences(*sums_of(signals / 2, noise, np.ones(20), generator)).factors
    many = differences(*sums_of(signals, noise, np.full(20, 200.0), generator)).factors
    assert one.shape[1] == 0
    assert many.shape[1] == 1
    # ‖s‖² = 7.85 each, with an error of √(785)/200 = .14 and of 2‖s‖/√200 = .4, 1 sd a pair.
    np.testing.assert_allclose(many @ many.T, signals @ signals.T, atol=2.5)


def test_who_is_too_noisy_to_be_seen_is_taken_to_differ_as_the_others_do():
    """Ten quiet clients are ±s apart; of two noisy ones one is s, one has a signal of its own.

    τ² is the quiet ones' variance, 10/9·‖s‖². The noise in a direction has a standard deviation of
    √e = .3 beside ‖s‖ = 2.8: what is seen of a client is within .3·5/2.8, about a half, of ‖s‖.
    """
    d, noise = 785, np.append(np.full(10, 1e-3), [0.1, 0.1])
    generator = np.random.default_rng(3)
    s, own = np.linalg.qr(generator.standard_normal((d, 2)))[0].T * 2.8
    signals = np.vstack([np.outer(np.tile([1.0, -1.0], 5), s), s, own])
    found = differences(*sums_of(signals, noise, np.ones(12), generator))
    length = 10 / 9 * 2.8**2
    hides = d * noise / (d * noise + length)
    assert found.factors.shape[1] == 1
    # Of the quiet ones all is seen but a ninth that the mean by precision takes.
    assert found.hidden[:10].max() < hides[0] * 0.2 * length
    # The first noisy one is seen to be s, the other is not seen at all.
    assert found.hidden[10] < 0.75 * hides[10] * length
    assert 0.75 * hides[11] * length < found.hidden[11] < 1.02 * hides[11] * length


def test_a_difference_that_is_hidden_keeps_a_clients_part():
    """Of two noisy clients the one that may differ has its target's part, the other hardly any."""
    noise, target = np.array([0.01, 0.01, 1.0, 1.0]), np.full(4, 0.25)
    differ = Differences(np.zeros((4, 1)), np.array([0.0, 0.0, 100.0, 0.0]))
    weights = least_error_weights(target, differ, noise)
    assert weights[2] == pytest.approx(0.25, abs=0.01)
    assert weights[3] < 0.01
