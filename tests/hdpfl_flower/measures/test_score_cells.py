"""The public cells of scores: every record in one of them, by itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

from hdpfl_flower.measures.score_cells import BINS, BORDERS, CELLS, LOGITS, MIDDLES, count_cells
from hdpfl_flower.models.task import Task

BINARY = Task.classification((1,), 2)
HOSTILE = np.array([0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-45, 3, -3], np.float32)


def test_the_bins_are_public_fine_around_a_half_and_at_both_ends() -> None:
    assert BORDERS.shape == (BINS - 1,)
    assert BORDERS[BINS // 2 - 1] == 0
    assert np.all((LOGITS[:-1] < BORDERS) & (LOGITS[1:] > BORDERS))
    np.testing.assert_array_equal(BORDERS, -BORDERS[::-1])
    np.testing.assert_allclose(MIDDLES, expit(LOGITS))
    steps = np.diff(BORDERS)
    assert steps.min() == pytest.approx(0.22, abs=0.01)
    assert np.all(steps[:4] < 0.23 * -BORDERS[:4])
    np.testing.assert_allclose(expit(BORDERS[:3]), [0.0038, 0.0115, 0.0279], atol=2e-4)


def test_counts_by_hand() -> None:
    outputs = logit([0.001, 0.5, 0.501, 0.9999]).astype(np.float32)[:, None]
    outputs[1] = 0  # exactly a half, which is no class 1
    results = count_cells(BINARY, outputs, np.array([0, 1, 1, 1]))
    assert results.shape == (CELLS,)
    assert results.dtype == np.float32
    half = BINS // 2
    cells = {0: 1, BINS + half - 1: 1, BINS + half: 1, 2 * BINS - 1: 1}
    assert {place: int(results[place]) for place in np.flatnonzero(results)} == cells


def test_two_outputs_are_scored_as_their_softmax() -> None:
    pair, estimate = Task((1,), 2, "softmax"), BINARY
    draws = np.random.default_rng(1).normal(size=(50, 2)).astype(np.float32)
    targets = np.arange(50) % 2
    difference = (draws[:, 1].astype(float) - draws[:, 0]).astype(np.float32)[:, None]
    same = count_cells(estimate, difference, targets)
    np.testing.assert_array_equal(count_cells(pair, draws, targets), same)


def test_one_record_more_changes_one_count_by_one_and_no_empty_cell() -> None:
    draws = np.random.default_rng(2)
    outputs = np.concatenate([HOSTILE, draws.normal(scale=4, size=80)]).astype(np.float32)[:, None]
    targets = draws.integers(2, size=len(outputs))
    before = np.zeros(CELLS)
    for count in range(1, len(outputs) + 1):
        after = count_cells(BINARY, outputs[:count], targets[:count])
        assert np.abs(after - before).sum() == (0 if np.isnan(outputs[count - 1, 0]) else 1)
        assert not after[2 * BINS :].any()
        before = after
    outer = np.concatenate([[-np.inf], BORDERS, [np.inf]])
    for k in (0, 1):
        expected, _ = np.histogram(outputs[(targets == k) & ~np.isnan(outputs[:, 0]), 0], outer)
        # Bins of NumPy hold their lower border; no score but the 0 lies on one.
        results = before[k * BINS : (k + 1) * BINS]
        assert np.abs(results - expected).sum() <= 2


def test_a_count_beyond_whole_float32_numbers_stops_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdpfl_flower.measures.score_cells.MOST", 3.0)
    results = count_cells(BINARY, np.full((9, 1), 2.0, np.float32), np.zeros(9, np.int64))
    assert results.max() == results.sum() == 3
