"""The gate of Anderson mixing: closed where it averages noise, open where it extrapolates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from hdpfl_flower.linalg.anderson import mixing_weights
from strategies.server_step.mixing_gate import ALARM, explained_by_noise, is_better

D = 2_000


def opens(residuals: np.ndarray, noise: float) -> bool:
    gram = residuals @ residuals.T
    weights = mixing_weights(gram, 1e-10)
    return is_better(gram, np.full(len(gram), noise), weights, residuals.shape[1])


@pytest.mark.parametrize("strength", [0.0, 1.0, 100.0, 1e4, 1e6])
def test_of_a_constant_signal_no_weights_are_better(strength: float) -> None:
    """At most ``ALARM`` a round, also where the signal is a million times the noise."""
    generator, rounds, d = np.random.default_rng(11), 2_000, 300
    signal = np.sqrt(strength / d) * np.ones(d)
    found = sum(
        opens(signal + generator.standard_normal((4, d)) / np.sqrt(d), 1.0) for _ in range(rounds)
    )
    assert found <= binom.ppf(1 - 1e-6, rounds, ALARM)


def decaying(noise: float, rate: float = 0.9, seed: int = 1) -> np.ndarray:
    """Return residuals of a map that contracts by ``rate``, of size 1 at first, with noise."""
    generator = np.random.default_rng(seed)
    signal = generator.standard_normal(D) / np.sqrt(D)
    steps = rate ** np.arange(3)[:, None] * signal
    return steps + np.sqrt(noise / D) * generator.standard_normal((3, D))


@pytest.mark.parametrize("seed", range(20))
def test_a_decaying_signal_is_extrapolated_where_it_is_clear_of_the_noise(seed: int) -> None:
    assert opens(decaying(1e-3, seed=seed), 1e-3)
    assert not opens(decaying(1.0, seed=seed), 1.0)
    assert opens(decaying(0.0, seed=seed), 0.0)


def test_residuals_that_alternate_are_averaged_without_noise() -> None:
    """A map that overshoots: the mean is the fixed point, and no noise explains the fall."""
    residuals = np.array([[1.0, 0.5], [-1.0, -0.5], [1.0, 0.5]])
    assert opens(residuals, 0.0)


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_the_mixed_residual_without_noise_is_no_more_than_is_assumed(share: float) -> None:
    """Of T(x) = x − λx + noise: the energy less what noise explains, against the true one."""
    generator = np.random.default_rng(3)
    noise = generator.standard_normal((400, D)) / np.sqrt(D)
    model, signals = np.zeros(D), []
    for drawn in noise:
        signals.append(-share * model)
        model = model + signals[-1] + drawn
    for weights in (np.full(4, 0.25), np.array([0.1, 0.2, 0.3, 0.4])):
        true, found = [], []
        for i in range(100, 396):
            f = np.array(signals[i : i + 4])
            true.append(np.square(weights @ f).sum() - np.square(f[-1]).sum())
            r = f + noise[i : i + 4]
            fall = np.square(r[-1]).sum() - np.square(weights @ r).sum()
            found.append(explained_by_noise(weights, np.ones(4)) - fall)
        assert np.mean(found) > np.mean(true) - 0.01
