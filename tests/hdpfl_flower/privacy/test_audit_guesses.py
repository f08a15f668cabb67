"""Guesses at a threshold: how often their bound errs, what it proves, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.audit import Guesses, gaussian_epsilon, guesses_of

DELTA = 1e-5
FALSE_ALARM = 1e-6
"""Chance that a check below rejects right code, were its seed another one."""


def errors_of(found: float, mistaken: float, epsilon: float, gaussian: bool) -> int:
    """Return in how many of 2,000 audits of 200 canaries the 95 % bound is above ``epsilon``."""
    generator = np.random.default_rng(1)
    pairs = zip(
        generator.binomial(100, found, 2000), generator.binomial(100, mistaken, 2000), strict=True
    )
    return sum(
        Guesses(100, int(a), 100, int(b), gaussian).epsilon_bound(DELTA, 0.05) > epsilon
        for a, b in pairs
    )


MOST = int(stats.binom(2000, 0.05).isf(FALSE_ALARM))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomised_response_is_above_its_epsilon_in_5_percent_at_most(epsilon: float) -> None:
    """(ε, δ) with the largest possible rate of right guesses of either kind."""
    right = (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))
    assert errors_of(right, 1 - right, epsilon, gaussian=False) <= MOST
    if epsilon >= 1:  # a smaller claim than the true ε is refuted
        assert errors_of(right, 1 - right, 0.5 * epsilon, gaussian=False) > MOST


@pytest.mark.parametrize("cut", [0.0, 0.5, 1.5])
def test_a_gaussian_is_above_its_epsilon_in_5_percent_at_most(cut: float) -> None:
    found, mistaken = stats.norm.sf(cut - 1), stats.norm.sf(cut)
    claim = gaussian_epsilon(1.0, DELTA)
    assert errors_of(found, mistaken, claim, gaussian=True) <= MOST
    assert errors_of(found, mistaken, gaussian_epsilon(0.3, DELTA), gaussian=True) > MOST


def test_the_bound_is_that_of_clopper_and_pearson() -> None:
    guesses, half = Guesses(50, 40, 60, 3, gaussian=False), 0.025
    least = stats.binomtest(40, 50).proportion_ci(1 - 2 * half, "exact").low
    most = stats.binomtest(3, 60).proportion_ci(1 - 2 * half, "exact").high
    assert guesses.epsilon_bound(DELTA, 0.05) == pytest.approx(math.log((least - DELTA) / most))
    assert guesses.epsilon_bound(DELTA, 1e-6) < guesses.epsilon_bound(DELTA, 0.05)
    assert guesses.epsilon_bound(DELTA, 0.05) < guesses.epsilon(DELTA)


def test_the_opposite_guess_proves_as_much() -> None:
    """Where nobody who took part is missed, a guess of "out" is the sure one."""
    sure_in = Guesses(100, 60, 100, 0, gaussian=False)
    sure_out = Guesses(100, 100, 100, 40, gaussian=False)
    bound = sure_in.epsilon_bound(DELTA, 0.05)
    assert bound > 2
    assert sure_out.epsilon_bound(DELTA, 0.05) == pytest.approx(bound)


def test_a_gaussian_claim_proves_more_of_the_same_guesses() -> None:
    words = (1000, 800, 1000, 200)
    plain, gaussian = (Guesses(*words, gaussian=kind) for kind in (False, True))
    assert gaussian.epsilon_bound(DELTA, 0.05) > 2 * plain.epsilon_bound(DELTA, 0.05)


@pytest.mark.parametrize("gaussian", [True, False])
@pytest.mark.parametrize("found", [0, 30, 50])
def test_guesses_no_better_than_chance_prove_nothing(found: int, gaussian: bool) -> None:
    assert Guesses(100, found, 100, 50, gaussian).epsilon_bound(DELTA, 0.05) in (
        0.0,
        pytest.approx(Guesses(100, 100 - found, 100, 50, gaussian).epsilon_bound(DELTA, 0.05)),
    )
    assert Guesses(100, 50, 100, 50, gaussian).epsilon(DELTA) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("gaussian", [True, False])
def test_perfect_guesses_have_finite_bounds_that_grow(gaussian: bool) -> None:
    few, many = (Guesses(n, n, n, 0, gaussian) for n in (100, 2000))
    assert 0 < few.epsilon_bound(DELTA, 0.05) < many.epsilon_bound(DELTA, 0.05) < math.inf
    assert math.isfinite(many.epsilon(DELTA))


def test_scores_become_guesses() -> None:
    scores = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 0.5]])
    members = np.array([[False, True, True], [True, False, False]])
    assert guesses_of(scores, members, 1.0, gaussian=True) == Guesses(3, 2, 3, 0, gaussian=True)
    assert guesses_of(scores, members, 0.4, gaussian=False) == Guesses(3, 3, 3, 2, gaussian=False)


def test_scores_that_say_nothing_are_refused() -> None:
    members = np.array([True, False])
    with pytest.raises(AccountingError, match="not finite"):
        guesses_of(np.array([math.nan, 1.0]), members, 0.0, gaussian=True)
    for all_alike in (members | True, members & False):
        with pytest.raises(AccountingError, match="too few canaries"):
            guesses_of(np.zeros(2), all_alike, 0.0, gaussian=True)
