"""Private choices of a model: what one record changes, what it costs, what noise is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy import integrate, stats
from scipy.optimize import brentq

from hdpfl_flower.errors import AccountingError, DataError
from hdpfl_flower.models.evaluation import count_correct
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import (
    ExtraRelease,
    Gaussians,
    Steps,
    calibrate,
    epsilon_of,
    event_of,
    interval_for,
)
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.privacy.noisy_max import choose_model, selection_noise_std, selection_sensitivity
from studies.r_dpcfl.two_stages import calibrate_with_selections, two_stage_steps

FALSE_ALARM = 1e-6
"""Chance that one statistical test below fails on right code (its seed is fixed all the same)."""

DELTA = 1e-4
KEY = bytes(range(32))
DRAWS = 20_000
CLOSE = np.array([1000, 1004, 1001, 996])


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The analytic Gaussian mechanism (Balle and Wang, ICML 2018, Theorem 8)."""

    def excess(eps: float) -> float:
        tails = stats.norm.cdf(
            [0.5 / multiplier - eps * multiplier, -0.5 / multiplier - eps * multiplier]
        )
        return float(tails[0] - math.exp(eps) * tails[1] - delta)

    return float(brentq(excess, 1e-9, 60, xtol=1e-12))


def chances(counts: np.ndarray, noise_std: float) -> np.ndarray:
    """The chance that each count is the largest, by numerical integration."""

    def wins(m: int) -> float:
        others = np.delete(counts, m)

        def density(x: float) -> float:
            rest = stats.norm.cdf((counts[m] + noise_std * x - others) / noise_std)
            return float(stats.norm.pdf(x) * np.prod(rest))

        return float(integrate.quad(density, -12, 12, epsabs=1e-12, limit=200)[0])

    return np.array([wins(m) for m in range(len(counts))])


@pytest.mark.parametrize("models", range(1, 11))
def test_the_sensitivity_is_the_largest_of_all_records(models: int) -> None:
    moves = np.array(list(itertools.product([0, 1], repeat=models)), float)
    moved = moves - moves.mean(axis=1, keepdims=True)
    most = np.linalg.norm(moved, axis=1).max()
    assert selection_sensitivity(models) == pytest.approx(most, rel=1e-12)
    assert selection_sensitivity(models) <= math.sqrt(models) / 2 + 1e-12


@pytest.mark.parametrize(("models", "std"), [(2, 0.7), (3, 0.7), (3, 3.0), (4, 1.5)])
def test_no_record_shifts_a_choice_by_more_than_is_charged(models: int, std: float) -> None:
    """The hockey-stick divergence of the choice itself, for every record and both ways."""
    generator = np.random.default_rng(models)
    multiplier = std / selection_sensitivity(models)
    for counts in (np.full(models, 50), generator.integers(45, 55, models)):
        before = chances(counts, std)
        assert before.sum() == pytest.approx(1, abs=1e-9)
        for move in itertools.product([0, 1], repeat=models):
            after = chances(counts + np.array(move), std)
            for eps in (0.0, 0.3, 1.0):
                allowed = stats.norm.cdf(0.5 / multiplier - eps * multiplier) - math.exp(
                    eps
                ) * stats.norm.cdf(-0.5 / multiplier - eps * multiplier)
                for one, other in ((before, after), (after, before)):
                    worst = np.maximum(one - math.exp(eps) * other, 0).sum()
                    assert worst <= allowed + 1e-9


def test_two_models_use_all_that_is_charged() -> None:
    """Their choice is a threshold of the Gaussian: halfway between, nothing is lost."""
    counts, std = np.array([50, 50.5]), 2.0
    multiplier = std / selection_sensitivity(2)
    far = np.abs(chances(counts + np.array([1, 0]), std) - chances(counts, std)).sum() / 2
    assert far == pytest.approx(2 * stats.norm.cdf(0.5 / multiplier) - 1, rel=1e-9)


def p_value(correct: np.ndarray, drawn_std: float, said_std: float) -> float:
    """Chance of choices as uneven as these, drawn with one noise, if the noise were another."""
    stream = RandomStream(KEY)
    chosen = [choose_model(correct, drawn_std, stream) for _ in range(DRAWS)]
    seen = np.bincount(chosen, minlength=len(correct))
    return float(stats.chisquare(seen, chances(correct, said_std) * DRAWS).pvalue)


def test_choices_come_as_often_as_their_noise_says() -> None:
    assert p_value(CLOSE, 4.0, 4.0) > FALSE_ALARM


@pytest.mark.parametrize("wrong", [0.0, 3.4, 4.7])
def test_choices_of_another_noise_are_found_out(wrong: float) -> None:
    assert p_value(CLOSE, wrong, 4.0) < FALSE_ALARM


def test_no_noise_is_the_largest_count_and_one_model_no_choice() -> None:
    assert choose_model(np.array([3, 9, 9]), 0.0, RandomStream(KEY)) == 1
    assert choose_model(np.array([0]), 5.0, RandomStream(KEY)) == 0
    assert selection_noise_std(3.0, 1) == 0


@pytest.mark.parametrize(
    ("correct", "std"),
    [
        (np.array([], int), 1.0),
        (np.array([0.5, 1.0]), 1.0),
        (np.array([[1, 2]]), 1.0),
        (np.array([1, 2]), -1.0),
        (np.array([1, 2]), math.nan),
        (np.array([1, 2]), math.inf),
    ],
)
def test_a_choice_that_cannot_be_charged_is_refused(correct: np.ndarray, std: float) -> None:
    with pytest.raises(AccountingError):
        choose_model(correct, std, RandomStream(KEY))


@pytest.mark.parametrize("models", [2, 3, 4, 7])
def test_the_noise_of_a_choice_costs_no_more_than_its_multiplier(models: int) -> None:
    std = selection_noise_std(1.2345, models)
    assert std / selection_sensitivity(models) >= 1.2345
    assert std == pytest.approx(1.2345 * selection_sensitivity(models), rel=1e-12)


def test_correct_records_are_counted_once_each() -> None:
    task = Task.classification((2,), 3)
    arrays = {"1.weight": np.eye(3, 2, dtype=np.float32), "1.bias": np.zeros(3, np.float32)}
    features = np.array([[1, 0], [1, 0], [0, 1], [-1, -1]], np.float32)
    assert count_correct("logreg", task, arrays, Records(features, np.array([0, 1, 1, 2]))) == 3
    none = Records(features[:0], np.array([], np.int64))
    assert count_correct("logreg", task, arrays, none) == 0
    arrays["1.weight"][:] = np.nan
    assert 0 <= count_correct("logreg", task, arrays, Records(features, np.array([0, 1, 1, 2]))) < 4
    two = Task.classification((2,), 2)
    line = {"1.weight": np.array([[1, 0]], np.float32), "1.bias": np.zeros(1, np.float32)}
    assert count_correct("logreg", two, line, Records(features, np.array([1, 0, 0, 0]))) == 3
    with pytest.raises(DataError, match="classes"):
        count_correct("logreg", Task.regression((2,)), line, Records(features, np.zeros(4)))


def cost(steps: list[Steps], z: float, beside: Sequence[ExtraRelease], around: float) -> float:
    interval = interval_for(around, sum(one.count for one in steps))
    return epsilon_of(event_of(steps, z, beside), DELTA, interval)


def test_choices_alone_cost_what_the_analytic_gaussian_says() -> None:
    found = cost([], 1.0, [Gaussians(6.0, 9), Gaussians(4.0, 2)], 2.0)
    exact = gaussian_epsilon((9 / 36 + 2 / 16) ** -0.5, DELTA)
    assert exact <= found <= exact * 1.001


def test_full_batches_and_choices_cost_what_the_analytic_gaussian_says() -> None:
    beside = [Gaussians(9.0, 20)]
    z = calibrate([Steps(1.0, 3)], 2.0, DELTA, beside)
    exact = brentq(
        lambda x: gaussian_epsilon((3 / x**2 + 20 / 81) ** -0.5, DELTA) - 2, 1, 100, xtol=1e-12
    )
    assert exact <= z <= exact * 1.003


@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # PRV's, at q = 1
def test_unlike_steps_and_choices_cost_what_two_other_accountants_say() -> None:
    steps, beside = two_stage_steps(600, 30, 600, 4), [Gaussians(8.0, 5)]
    z = 1.3
    found = cost(list(steps), z, beside, 3.0)
    history = [(z, 1.0, 1), (z, 0.05, 60), (8.0, 1.0, 5)]
    rdp, prv = RDPAccountant(), PRVAccountant()
    rdp.history, prv.history = history, history
    assert found <= rdp.get_epsilon(DELTA)
    # PRV gives an estimate's upper end, whose error it bounds by 0.01.
    assert prv.get_epsilon(DELTA, eps_error=0.01) - 0.02 <= found <= prv.get_epsilon(DELTA) + 0.001


def test_steps_and_choices_together_fit_one_epsilon_and_one_delta() -> None:
    steps = two_stage_steps(600, 30, 600, 4)
    z, beside = calibrate_with_selections(steps, 3.0, DELTA, 6, 0.3)
    assert beside.count == 6
    assert 0.99 * 3 <= cost(list(steps), z, [beside], 3.0) <= 3
    assert 0.99 * 0.9 <= cost([], 1.0, [beside], 0.9) <= 0.9
    alone, split = (calibrate(steps, eps, DELTA) for eps in (3.0, 3.0 - 0.9))
    assert alone < z < split  # the authors split, and spend δ twice besides


def test_the_ends_of_the_budget() -> None:
    steps = two_stage_steps(600, 30, 600, 2)
    assert calibrate_with_selections(steps, math.inf, DELTA, 6, 0.3) == (0.0, Gaussians(0.0, 6))
    assert calibrate_with_selections(steps, 3.0, DELTA, 0, 0.3) == (
        calibrate(steps, 3.0, DELTA),
        Gaussians(0.0, 0),
    )
    with pytest.raises(AccountingError, match="beside the training takes all"):
        calibrate(steps, 1.0, DELTA, [Gaussians(0.5, 1)])
    for share, count in ((0.0, 1), (1.0, 1), (math.nan, 1), (0.5, -1)):
        with pytest.raises(AccountingError, match="share of epsilon"):
            calibrate_with_selections(steps, 3.0, DELTA, count, share)


@pytest.mark.parametrize(
    ("batch", "first", "rounds"), [(0, 10, 2), (11, 10, 2), (5, 11, 2), (5, 0, 2), (5, 10, 0)]
)
def test_stages_that_cannot_be_are_refused(batch: int, first: int, rounds: int) -> None:
    with pytest.raises(AccountingError, match="batches"):
        two_stage_steps(10, batch, first, rounds)


def test_a_client_takes_whole_steps() -> None:
    assert two_stage_steps(6600, 128, 6600, 200, 2) == (
        Steps(1.0, 2),
        *((Steps(128 / 6600, 104),) * 199),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "batch", "expected"), [(5.0, 32, 1.230), (10.0, 32, 0.823)])
def test_our_accountant_beside_the_papers(epsilon: float, batch: int, expected: float) -> None:
    """R-DPCFL's N = 6,600, E = 200, b¹ = N; its own accountant takes 1.444 and 0.903."""
    found = calibrate(two_stage_steps(6600, batch, 6600, 200), epsilon, DELTA)
    assert found == pytest.approx(expected, abs=6e-4)
