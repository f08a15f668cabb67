"""The power of a membership test: closed forms, a test that attains it, and the ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import Steps, epsilon_of, event_of, interval_for
from hdpfl_tools.measures.trade_off import true_positive_rate

RATES = (0.001, 0.01, 0.1, 0.5)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("count", [1, 4])
def test_of_gaussians_it_is_the_likelihood_ratios(sigma: float, count: int) -> None:
    """Neyman and Pearson: Φ(Φ⁻¹(FPR) + √count/σ); never less, at most a thousandth more."""
    for rate in RATES:
        exact = norm.cdf(norm.ppf(rate) + math.sqrt(count) / sigma)
        found = true_positive_rate(event_of([Steps(1, count)], sigma), rate, 1e-3)
        assert exact - 1e-9 <= found <= exact + 1e-3


def test_a_test_on_a_sampled_step_does_not_exceed_it() -> None:
    """The likelihood-ratio test of one step at q = .2, exactly: the bound holds and is reached."""
    sigma, q = 0.8, 0.2
    event = event_of([Steps(q, 1)], sigma)
    for rate in RATES:
        cut = norm.isf(rate) * sigma
        more = (1 - q) * norm.sf(cut / sigma) + q * norm.sf((cut - 1) / sigma)
        # A record less: members are those without it.
        grid = np.linspace(-6, 7, 200_001)
        without, fake = norm.cdf(grid / sigma), q * norm.cdf((grid - 1) / sigma)
        less = np.interp(rate, (1 - q) * without + fake, without)
        found = true_positive_rate(event, rate, 1e-4)
        assert max(more, less) - 1e-6 <= found <= max(more, less) + 2e-3


def test_it_says_more_than_one_pair_of_epsilon_and_delta() -> None:
    event, delta = event_of([Steps(0.05, 400)], 1.2), 1e-5
    interval = interval_for(4.0, 400)
    epsilon = epsilon_of(event, delta, interval)
    for rate in (0.01, 0.1):
        by_pair = min(math.exp(epsilon) * rate + delta, 1 - math.exp(-epsilon) * (1 - delta - rate))
        assert rate < true_positive_rate(event, rate, interval) < 0.8 * by_pair


def test_next_to_no_noise_and_none() -> None:
    assert true_positive_rate(event_of([Steps(1, 1)], 1e-2), 0.01, 1.0) == pytest.approx(1)
    assert true_positive_rate(event_of([], 1.0), 0.01, 1e-3) == pytest.approx(0.01)
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(AccountingError, match="false-positive"):
            true_positive_rate(event_of([], 1.0), wrong, 1e-3)
