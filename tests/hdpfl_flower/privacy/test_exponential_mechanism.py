"""Choices with Gumbel noise: what one record changes, what is drawn, what they cost."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from hdpfl_flower.errors import AccountingError
from hdpfl_flower.privacy.accounting import (
    ExtraRelease,
    Gaussians,
    PureSelections,
    Steps,
    calibrate,
    epsilon_of,
    event_of,
    interval_for,
)
from hdpfl_flower.privacy.exponential_mechanism import (
    choose_model_by_gumbel,
    composed_delta,
    pure_selections,
)
from hdpfl_flower.privacy.noise import RandomStream
from studies.r_dpcfl.two_stages import calibrate_with_selections, two_stage_steps
from tests.hdpfl_flower.privacy.test_noisy_max import CLOSE, DELTA, DRAWS, FALSE_ALARM, KEY


def chances(counts: np.ndarray, epsilon: float) -> np.ndarray:
    """The exponential mechanism on the counts, without the factor 2."""
    weights = np.exp(epsilon * (counts - counts.max()))
    return np.asarray(weights / weights.sum())


def loss_delta(loss: list[tuple[mpmath.mpf, mpmath.mpf]], eps: float) -> float:
    """δ of a discrete privacy loss at ε: E[max(0, 1 − e^{ε − loss})]."""
    return float(sum(p * (1 - mpmath.exp(eps - at)) for at, p in loss if at > eps))


def responses(each: float, count: int) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """The privacy loss of ``count`` randomized responses, value by value."""
    with mpmath.workdps(40):
        yes = mpmath.exp(each) / (1 + mpmath.exp(each))
        return [
            (
                (2 * k - count) * mpmath.mpf(each),
                mpmath.binomial(count, k) * yes**k * (1 - yes) ** (count - k),
            )
            for k in range(count + 1)
        ]


def gaussian_delta(eps: float, multiplier: float) -> float:
    tails = stats.norm.cdf(
        [0.5 / multiplier - eps * multiplier, -0.5 / multiplier - eps * multiplier]
    )
    return float(tails[0] - math.exp(eps) * tails[1])


def cost(
    steps: list[Steps], z: float, beside: list[ExtraRelease], delta: float, around: float
) -> float:
    interval = interval_for(around, sum(one.count for one in steps))
    return epsilon_of(event_of(steps, z, beside), delta, interval)


# One choice.


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    epsilon=st.sampled_from([0.01, 0.3, 1.0, 4.0]),
)
def test_a_record_shifts_a_choice_by_its_epsilon(counts: list[int], epsilon: float) -> None:
    before = chances(np.array(counts), epsilon)
    for move in itertools.product([0, 1], repeat=len(counts)):
        after = chances(np.array(counts) + np.array(move), epsilon)
        assert np.abs(np.log(after / before)).max() <= epsilon * (1 + 1e-9)


def test_what_is_charged_is_used_up_and_replacing_a_record_costs_twice() -> None:
    counts, epsilon = np.array([40, 0]), 0.5
    moved = chances(counts + np.array([1, 0]), epsilon) / chances(counts, epsilon)
    assert np.abs(np.log(moved)).max() == pytest.approx(epsilon, rel=1e-6)
    replaced = chances(counts + np.array([1, -1]), epsilon) / chances(counts, epsilon)
    assert np.abs(np.log(replaced)).max() == pytest.approx(2 * epsilon, rel=1e-6)


def p_value(correct: np.ndarray, drawn: float, said: float) -> float:
    """Chance of choices as uneven as these, drawn at one ε, if it were another."""
    stream = RandomStream(KEY)
    chosen = [choose_model_by_gumbel(correct, drawn, stream) for _ in range(DRAWS)]
    seen = np.bincount(chosen, minlength=len(correct))
    return float(stats.chisquare(seen, chances(correct, said) * DRAWS).pvalue)


def test_choices_come_as_often_as_their_epsilon_says() -> None:
    assert p_value(CLOSE, 0.3, 0.3) > FALSE_ALARM


@pytest.mark.parametrize("wrong", [math.inf, 0.6, 0.34, 0.26, 0.15])
def test_choices_at_another_epsilon_are_found_out(wrong: float) -> None:
    assert p_value(CLOSE, wrong, 0.3) < FALSE_ALARM


def test_the_noise_is_gumbel_and_finite() -> None:
    drawn = RandomStream(KEY).gumbel(200_000)
    assert np.isfinite(drawn).all()
    assert stats.kstest(drawn, stats.gumbel_r.cdf).pvalue > FALSE_ALARM
    for wrong in (1.03, 1 / 1.03):
        assert stats.kstest(drawn * wrong, stats.gumbel_r.cdf).pvalue < FALSE_ALARM


class Extremes(RandomStream):
    """A stream of the least and the largest words."""

    def bytes(self, count: int) -> bytes:
        return (bytes(8) + b"\xff" * 8) * (count // 16)


def test_the_farthest_words_give_finite_noise() -> None:
    assert Extremes(KEY).gumbel(2) == pytest.approx([36.7368, -3.6037], abs=1e-4)


def test_no_noise_is_the_largest_count_and_one_model_no_choice() -> None:
    assert choose_model_by_gumbel(np.array([3, 9, 9]), math.inf, RandomStream(KEY)) == 1
    assert choose_model_by_gumbel(np.array([0]), 1e-9, RandomStream(KEY)) == 0


@pytest.mark.parametrize(
    ("correct", "epsilon"),
    [
        (np.array([], int), 1.0),
        (np.array([0.5, 1.0]), 1.0),
        (np.array([[1, 2]]), 1.0),
        (np.array([1, 2]), 0.0),
        (np.array([1, 2]), -1.0),
        (np.array([1, 2]), math.nan),
    ],
)
def test_a_choice_that_cannot_be_charged_is_refused(correct: np.ndarray, epsilon: float) -> None:
    with pytest.raises(AccountingError):
        choose_model_by_gumbel(correct, epsilon, RandomStream(KEY))


# What choices cost.


@pytest.mark.parametrize("epsilon", [0.0123, 0.37, 2.5])
def test_one_choice_costs_its_epsilon(epsilon: float) -> None:
    """At the least δ the closed form ln(e^ε − δ·(1 + e^ε)) is ε itself, but for 1e-7 of it."""
    found = cost([], 1.0, [PureSelections(epsilon, 1)], 1e-10, epsilon)
    exact = math.log(math.exp(epsilon) - 1e-10 * (1 + math.exp(epsilon)))
    assert exact * (1 - 1e-12) <= found <= epsilon * (1 + 1e-12)
    assert found == pytest.approx(epsilon, rel=1e-7)


@pytest.mark.parametrize(("each", "count"), [(0.03, 20), (0.1, 20), (1.0, 60), (0.02, 200)])
def test_many_choices_cost_what_the_optimal_composition_says(each: float, count: int) -> None:
    loss = responses(each, count)
    exact = brentq(lambda eps: loss_delta(loss, eps) - DELTA, 0, count * each, xtol=1e-13)
    found = cost([], 1.0, [PureSelections(each, count)], DELTA, exact)
    rounded_up = count * interval_for(exact, 0)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-4) + rounded_up
    assert found < 0.9 * count * each
    assert composed_delta(each, count, exact) == pytest.approx(DELTA, rel=1e-6)


def test_choices_and_full_batches_cost_what_their_convolution_says() -> None:
    """δ = E over the choices' loss L of the Gaussian's δ at ε − L."""
    z, loss = 8.0, responses(0.2, 6)

    def excess(eps: float) -> float:
        return sum(float(p) * gaussian_delta(eps - float(at), z / 2) for at, p in loss) - DELTA

    exact = brentq(excess, 0.1, 5, xtol=1e-13)
    found = cost([Steps(1.0, 4)], z, [PureSelections(0.2, 6)], DELTA, exact)
    assert exact * (1 - 1e-9) <= found <= exact * 1.001
    both = cost([Steps(1.0, 3)], z, [PureSelections(0.2, 6), Gaussians(8.0, 1)], DELTA, exact)
    assert both == pytest.approx(found, rel=1e-4)


@settings(max_examples=40)
@given(epsilon=st.floats(1e-3, 30), delta=st.floats(1e-10, 0.9), count=st.integers(1, 60))
def test_choices_get_what_they_may_cost(epsilon: float, delta: float, count: int) -> None:
    each = pure_selections(epsilon, delta, count).epsilon
    assert loss_delta(responses(each, count), epsilon) <= delta * (1 + 1e-9)
    assert loss_delta(responses(each * 1.0002, count), epsilon) > delta


def test_steps_and_choices_together_fit_one_epsilon_and_one_delta() -> None:
    steps = two_stage_steps(600, 30, 600, 4)
    z, beside = calibrate_with_selections(steps, 3.0, DELTA, 6, 0.3, mechanism="gumbel")
    assert beside == pure_selections(0.9, DELTA, 6)
    assert 0.99 * 3 <= cost(list(steps), z, [beside], DELTA, 3.0) <= 3
    assert 0.999 * 0.9 <= cost([], 1.0, [beside], DELTA, 0.9) <= 0.9 * 1.001
    alone, split = (calibrate(steps, eps, DELTA) for eps in (3.0, 3.0 - 0.9))
    assert alone < z < split


def test_the_ends_of_the_budget() -> None:
    steps = two_stage_steps(600, 30, 600, 2)
    found = calibrate_with_selections(steps, math.inf, DELTA, 6, 0.3, mechanism="gumbel")
    assert found == (0.0, PureSelections(math.inf, 6))
    found = calibrate_with_selections(steps, 3.0, DELTA, 0, 0.3, mechanism="gumbel")
    assert found == (calibrate(steps, 3.0, DELTA), PureSelections(math.inf, 0))
    with pytest.raises(AccountingError, match="beside the training takes all"):
        calibrate(steps, 1.0, DELTA, [PureSelections(2.0, 1)])
    with pytest.raises(AccountingError, match="'gaussian' or 'gumbel'"):
        calibrate_with_selections(steps, 3.0, DELTA, 6, 0.3, mechanism="laplace")  # type: ignore[arg-type]
    for wrong in ((0.0, DELTA, 1), (math.nan, DELTA, 1), (1.0, 0.0, 1), (1.0, DELTA, -1)):
        with pytest.raises(AccountingError, match="choices need"):
            pure_selections(*wrong)
