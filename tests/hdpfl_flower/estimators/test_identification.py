"""``identified`` means what it says: where it is True, the weights are nearly as good as told.

q = Σw²σ² · Σ1/σ², see ``signals.py``, whose signals these are, by seeds of their own.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from hdpfl_flower.estimators.factor_analysis import FactorModel, factor_analysis
from hdpfl_flower.estimators.identification import relative_errors
from hdpfl_flower.estimators.noise_level import measure_noise
from hdpfl_flower.linalg.sums import second_moments
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
