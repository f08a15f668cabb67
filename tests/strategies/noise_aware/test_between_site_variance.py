"""Between-site variance: the sum it stands for, no bias, and nothing where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.linalg.sums import inner_products
from strategies.noise_aware.between_site_variance import between_site_variance

FALSE_ALARM = 1e-6
"""Chance that the statistical check below rejects right code."""
BOUND = stats.norm.isf(FALSE_ALARM / 2)  # two-sided, in standard errors: 4.89
D = 40_000
NOISE = np.array([0.01, 0.1, 0.5, 1.0, 3.0, 10.0])


def drawn(drift: float) -> np.ndarray:
    """Updates with a common mean, drift of standard deviation ``drift`` and noise, (6, d)."""
    generator = np.random.default_rng(1)
    rows = 2 * generator.standard_normal(D) + drift * generator.standard_normal((len(NOISE), D))
    noisy: np.ndarray = rows + NOISE[:, None] * generator.standard_normal(rows.shape)
    return noisy


def standard_error(drift: float) -> float:
    """Of τ̂²: per coordinate Q = uᵀMu, M = diag(a) − aaᵀ/Σa, has variance 2·tr((M·Cov)²)."""
    a = 1 / NOISE**2
    m = np.diag(a) - np.outer(a, a) / a.sum()
    product = m @ np.diag(drift**2 + NOISE**2)
    scale = a.sum() - (a**2).sum() / a.sum()
    return math.sqrt(2 * float(np.trace(product @ product)) / D) / scale


def check_unbiased(found: float, drift: float) -> None:
    assert abs(found - drift**2) < BOUND * standard_error(drift)


@pytest.mark.parametrize("drift", [0.0, 0.05, 1.0, 20.0])
def test_the_estimate_is_unbiased(drift: float) -> None:
    found = between_site_variance(inner_products(drawn(drift).astype(np.float32)) / D, NOISE**2)
    check_unbiased(found, drift)
    for wrong in (2 / 3, 1.5):  # of a standard deviation
        if drift:
            with pytest.raises(AssertionError):
                check_unbiased(wrong**2 * found, drift)


def test_the_check_rejects_an_estimate_that_ignores_the_noise() -> None:
    plain = drawn(0.05).var(axis=0, ddof=1).mean()
    with pytest.raises(AssertionError):
        check_unbiased(plain, 0.05)


def test_the_moments_give_what_the_coordinates_do() -> None:
    """Cochran's Q coordinate by coordinate, as the 1986 paper writes it."""
    rows, a = drawn(0.5)[:, :300], 1 / NOISE**2
    centre = a @ rows / a.sum()
    q = (a[:, None] * (rows - centre) ** 2).sum(axis=0).mean()
    expected = (q - (len(a) - 1)) / (a.sum() - (a**2).sum() / a.sum())
    assert between_site_variance(rows @ rows.T / 300, NOISE**2) == pytest.approx(expected, rel=1e-9)


def test_equal_updates_show_no_drift() -> None:
    assert between_site_variance(np.ones((4, 4)), np.full(4, 0.5)) < 0
    assert between_site_variance(np.ones((1, 1)), np.ones(1)) == 0
