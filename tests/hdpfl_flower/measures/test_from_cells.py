"""Measures of noisy counts: exact without noise, unbiased with it, and intervals that hold it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit
from sklearn import metrics

from hdpfl_flower.measures.bootstrap import Estimate
from hdpfl_flower.measures.from_cells import OF_CELLS, NoisyCells, _auroc, measure_cells
from hdpfl_flower.measures.score_cells import BINS, CELLS, MIDDLES, count_cells
from hdpfl_flower.models.task import Task
from hdpfl_tools.measures.calibration import Calibration

FALSE_ALARM = 1e-6
"""Chance that a statistical test below fails on right code (their streams are fixed)."""
BINARY = Task.classification((1,), 2)
LEVEL = 0.95


def sample(records: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and labels that are a little miscalibrated."""
    draws = np.random.default_rng(seed)
    x = draws.normal(-0.5, 1.5, records).astype(np.float32)
    return x, (draws.random(records) < expit(0.2 + 0.8 * x)).astype(np.int64)


def cells_of(x: np.ndarray, y: np.ndarray) -> NoisyCells:
    return NoisyCells.of_sites(count_cells(BINARY, x[:, None], y)[None])


def binned(x: np.ndarray) -> np.ndarray:
    """Return the bin's middle in the place of each score."""
    ones = np.ones(1, np.int64)
    where = [
        count_cells(BINARY, np.array([[estimate]]), ones)[BINS : 2 * BINS].argmax()
        for estimate in x
    ]
    return MIDDLES[where]


def test_without_noise_every_measure_is_that_of_the_binned_scores() -> None:
    x, y = sample(600)
    cells, scores = cells_of(x, y), binned(x)
    assert (cells.variance, cells.freedom, cells.records) == (0.0, math.inf, 600)
    results = measure_cells(cells).estimates
    assert tuple(results) == OF_CELLS
    fit = Calibration(logit(scores), y.astype(float))
    expected = {
        "auroc": metrics.roc_auc_score(y, scores),
        "brier": metrics.brier_score_loss(y, scores),
        "accuracy": metrics.accuracy_score(y, x > 0),
    }
    for name, value in expected.items():
        # Less the bias of a ratio of counts, which for as many records is next to nothing.
        assert results[name].value == pytest.approx(value, abs=1e-9), name
    assert results["calibration-slope"].value == pytest.approx(fit.slope, abs=2e-3)
    assert results["calibration-intercept"].value == pytest.approx(fit.intercept, abs=2e-3)
    for estimate in results.values():
        assert estimate.low < estimate.value < estimate.high


def noisy(sites: int, std: float, seed: int, exact: np.ndarray | None = None) -> np.ndarray:
    """Return counts of ``sites``, of which the first holds the records."""
    counts = np.random.default_rng(seed).normal(0, std, (sites, CELLS))
    if exact is not None:
        counts[0, : 2 * BINS] += exact
    return counts


def test_the_noise_is_estimated_from_the_empty_cells() -> None:
    cells = NoisyCells.of_sites(noisy(40, 3.0, 1, np.full(2 * BINS, 500.0)))
    assert cells.freedom == pytest.approx(40 * 32, rel=0.1)

    def p_value(variance: float) -> float:
        tail = stats.chi2.cdf(cells.variance / variance * 1280, 1280)
        return float(2 * min(tail, 1 - tail))

    assert p_value(40 * 9) > FALSE_ALARM
    assert p_value(40 * 9 * 4 / 9) < FALSE_ALARM
    assert p_value(40 * 9 * 9 / 4) < FALSE_ALARM


def population() -> np.ndarray:
    """Return the share of the records in each cell, class 0 first, shape (2·BINS,)."""
    x, y = sample(400_000, 9)
    return count_cells(BINARY, x[:, None], y)[: 2 * BINS].astype(float) / len(x)


def truth() -> dict[str, Estimate]:
    shares = 1e9 * population()
    return measure_cells(NoisyCells(shares[:BINS], shares[BINS:], 0.0, math.inf)).estimates


def holds(covered: int, trials: int) -> bool:
    """Whether so many covers agree with the level, at the stated chance of a false alarm."""
    return bool(
        stats.binom.cdf(covered, trials, LEVEL) > FALSE_ALARM / 2
        and stats.binom.sf(covered - 1, trials, LEVEL) > FALSE_ALARM / 2
    )


@pytest.mark.parametrize(("records", "std"), [(1000, 4.0), (5000, 1.0), (400, 0.0)])
def test_intervals_cover_as_often_as_they_say_and_those_of_another_scale_do_not(
    records: int, std: float
) -> None:
    trials, shares, real = 320, population(), truth()["auroc"].value
    draws = np.random.default_rng(5)
    scales = (1.0, 0.25, 4.0)  # of the variance: the noise itself, half of it, twice as much
    covered, values = dict.fromkeys(scales, 0), []
    for trial in range(trials):
        cells = NoisyCells.of_sites(noisy(5, std, trial, draws.poisson(records * shares)))
        for scale in scales:
            reach = cells.reach(LEVEL)
            estimate = _auroc(replace(cells, variance=scale * cells.variance), reach)
            covered[scale] += estimate.low <= real <= estimate.high
            if scale == 1:
                values.append(estimate.value)
    assert holds(covered[1.0], trials), covered
    if std == 4:  # elsewhere the records' own variance is the larger one
        assert not holds(covered[0.25], trials), covered
        assert not holds(covered[4.0], trials), covered
    # Unbiased, within what the mean of so many can show.
    error = np.std(values) / math.sqrt(trials)
    assert abs(np.mean(values) - real) < stats.norm.isf(FALSE_ALARM / 2) * error


def test_a_ratio_of_noisy_counts_is_debiased() -> None:
    """Each noise is taken with both signs, so that what is linear in it cancels in the mean."""
    exact, real = 1000 * population(), truth()["auroc"].value
    above, plain, results = np.tri(BINS, k=-1) + np.eye(BINS) / 2, [], []
    for trial in range(400):
        noise = noisy(1, 9.0, trial)
        for sign in (1, -1):
            rows = sign * noise
            rows[0, : 2 * BINS] += exact
            cells = NoisyCells.of_sites(rows)
            pairs = cells.ones.sum() * cells.zeros.sum()
            plain.append(float(cells.ones @ above @ cells.zeros) / pairs)
            results.append(_auroc(cells, 2.0).value)
    pairs_of_both = np.reshape(plain, (-1, 2)).mean(1)
    error = np.std(pairs_of_both) / math.sqrt(len(pairs_of_both))
    bias = np.mean(plain) - real
    assert abs(bias) > 5 * error
    assert abs(np.mean(results) - real) < abs(bias) / 4
