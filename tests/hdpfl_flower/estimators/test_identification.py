"""``identified`` means what it says: where it is True, the weights are nearly as good as told.

q = Σw²σ² · Σ1/σ², see ``signals.py``, whose signals these are, by seeds of their own.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hdpfl_flower.estimators.factor_analysis import FactorModel, factor_analysis, spare_equations
from hdpfl_flower.estimators.identification import (
    cost_of_private_signal,
    doubt,
    expected_excess,
    relative_errors,
)
from hdpfl_flower.estimators.noise_level import measure_noise
from hdpfl_flower.linalg.sums import second_moments
from hdpfl_flower.linalg.types import Vector
from tests.hdpfl_flower.estimators.signals import BEYOND, HELD_OUT, TUNING, draw, judge

FALSE_ALARM = 1e-6
SEEDS = range(20_000, 20_200)
"""None that the benchmark tunes on or measures."""


def most_misses(said: int) -> int:
    """Return how many of ``said`` rounds may have q > 1.1, if 5 % do, by ``FALSE_ALARM``."""
    return int(stats.binom.isf(FALSE_ALARM, said, 0.05))


def test_where_it_is_said_the_weights_are_good() -> None:
    """Said of every round, as before, 36 % would miss: more than the bound allows."""
    assert not set(SEEDS) & (set(TUNING) | set(HELD_OUT))
    kinds, identified, q = judge(SEEDS)
    counted = np.array([kind != BEYOND for kind in kinds])
    said = counted & np.array(identified)
    assert said.sum() >= 0.2 * counted.sum()
    assert np.sum(q[said] > 1.1) <= most_misses(int(said.sum()))
    assert np.sum(q[counted] > 1.1) > most_misses(int(counted.sum())), "the check can fail"


def test_no_round_with_a_copy_is_called_identified() -> None:
    for seed in SEEDS:
        kind, rows, _ = draw(seed)
        if kind == "copy":
            assert not measure_noise(rows).identified


# Each guard alone: a model that all the others let pass.


def model_of(
    n: int, factors: int, seed: int = 1, strength: float = 0.5
) -> tuple[FactorModel, Vector]:
    """Return a model of weak factors and noise 1, and its moments."""
    loadings = strength * np.random.default_rng(seed).standard_normal((n, factors))
    return FactorModel(np.ones(n), loadings, True), loadings @ loadings.T + np.eye(n)


def reason(model: FactorModel, moments: Vector, effective: float = 1e9) -> str:
    return doubt(model, model.variances, moments, effective)


def test_a_clear_round_is_identified() -> None:
    assert reason(*model_of(12, 2)) == ""
    assert reason(*model_of(5, 1)) == ""


def test_fewer_than_five_clients_are_not() -> None:
    assert "fewer than 5" in reason(*model_of(4, 0))


@pytest.mark.parametrize(("n", "factors"), [(6, 3), (7, 4)])
def test_as_many_unknowns_as_equations_are_not(n: int, factors: int) -> None:
    """Ledermann's bound itself: the equations leave none to check the answer with."""
    assert spare_equations(n, factors) < 2
    assert "no equation to spare" in reason(*model_of(n, factors), effective=1e30)


def test_a_heywood_case_is_not() -> None:
    model, moments = model_of(8, 1)
    levels = model.variances.copy()
    levels[3] = 1e-6 * moments[3, 3]
    assert "floor" in doubt(model, levels, moments, 1e9)


def test_too_few_coordinates_are_not() -> None:
    """q − 1 is 2/N · (1 − Σp²) without factors: the 2 % are reached near N = 88."""
    model, moments = model_of(8, 0)
    assert expected_excess(model, 1e4) == pytest.approx(2e-4 * 7 / 8)
    assert reason(model, moments, 100) == ""
    assert "chance" in reason(model, moments, 80)


def test_a_factor_that_two_clients_have_for_themselves_leaves_them_open() -> None:
    loadings = np.zeros((8, 1))
    loadings[:2] = 1
    model = FactorModel(np.ones(8), loadings, True)
    assert relative_errors(model, 1e4) is None
    assert expected_excess(model, 1e30) == np.inf


def test_a_strong_signal_is_not() -> None:
    """A hundredth of a signal 100 times the quietest noise, if private, would be that noise."""
    loadings = np.full((8, 1), 3.0)
    variances = np.array([0.03] + [1.0] * 7)
    moments = loadings @ loadings.T + np.diag(variances)
    model = FactorModel(variances, loadings, True)
    assert "if private" in reason(model, moments)
    assert cost_of_private_signal(variances, moments) == np.inf


def test_the_errors_are_those_of_maximum_likelihood() -> None:
    """400 draws: a sample variance lies within a factor 1 ± 6·√(2/400) but once in 10⁸."""
    generator, d, n = np.random.default_rng(3), 4_000, 8
    loadings = generator.uniform(0.5, 2, (n, 1))
    true = 10 ** generator.uniform(-1, 0, n)
    found = []
    for _ in range(400):
        rows = loadings @ generator.standard_normal((1, d))
        rows += np.sqrt(true)[:, None] * generator.standard_normal((n, d))
        found.append(factor_analysis(second_moments(rows), d).variances)
    expected = relative_errors(FactorModel(true, loadings, True), d)
    assert expected is not None
    ratio = np.var(np.array(found) / true, axis=0) / np.diag(expected)
    assert np.all(np.abs(ratio - 1) < 6 * np.sqrt(2 / 400))
    assert not np.all(np.abs(2 * ratio - 1) < 6 * np.sqrt(2 / 400))


@pytest.mark.parametrize("method", ["rpca", "column-norm"])
def test_what_is_never_checked_is_never_called_identified(method: str) -> None:
    rows = np.random.default_rng(1).standard_normal((8, 500)).astype(np.float32)
    assert not measure_noise(rows, method).identified
