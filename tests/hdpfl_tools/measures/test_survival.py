"""Concordance and loss of survival, weighted, with intervals over units."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.data.array_targets import survival_targets
from hdpfl_flower.measures.concordance import concordance, risk_of
from hdpfl_flower.models import evaluation
from hdpfl_flower.models.task import Task
from hdpfl_tools.measures.clinical import OF_SURVIVAL, How, measure, measures_of

INTERVALS = 4
TASK = Task.survival((2,), INTERVALS)


def sample(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits of hazards, some of them tied, and targets that follow them a little."""
    draws = np.random.default_rng(seed)
    risk = np.round(draws.normal(size=count), 1)
    outputs = (risk[:, None] + np.zeros(INTERVALS)).astype(np.float32)
    hits = draws.random((count, INTERVALS)) < 1 / (1 + np.exp(1 - risk[:, None]))
    event = hits.any(1) & (draws.random(count) < 0.8)
    last = np.where(hits.any(1), hits.argmax(1), draws.integers(INTERVALS, size=count))
    return outputs, survival_targets(last, event)


def test_both_are_those_of_the_rounds() -> None:
    outputs, targets = sample(300)
    results = measures_of(TASK, outputs, targets)(np.ones((1, 300)))[0]
    assert results[0] == pytest.approx(concordance(risk_of(outputs), targets), abs=1e-12)
    rounds = evaluation.measures(TASK, outputs, targets)
    assert dict(zip(OF_SURVIVAL, results, strict=True)) == pytest.approx(
        {"concordance": rounds["concordance"], "log-loss": rounds["loss"]}, rel=1e-5
    )


def test_a_weight_is_as_many_records() -> None:
    outputs, targets = sample(60)
    weights = np.random.default_rng(2).integers(4, size=(5, 60))
    results = measures_of(TASK, outputs, targets)(weights.astype(float))
    for row, values in zip(weights, results, strict=True):
        rows = np.repeat(np.arange(60), row)
        again = measures_of(TASK, outputs[rows], targets[rows])
        np.testing.assert_allclose(again(np.ones((1, len(rows))))[0], values, atol=1e-12)
        exact = concordance(risk_of(outputs[rows]), targets[rows])
        assert values[0] == pytest.approx(exact, abs=1e-12)


def test_the_interval_resamples_persons() -> None:
    """Records that are copies of one another make no interval narrower."""
    outputs, targets = sample(80, 1)
    units = np.repeat(np.arange(80), 4)
    whole = measure(TASK, outputs, targets, how=How(seed=3))
    fourfold = measure(TASK, outputs[units], targets[units], units, How(seed=3))
    single, copied = (model.estimates["concordance"] for model in (whole, fourfold))
    assert copied.value == pytest.approx(single.value, abs=1e-12)
    widths = [estimate.high - estimate.low for estimate in (single, copied)]
    assert widths[1] == pytest.approx(widths[0], rel=0.1)
    assert single.low < single.value < single.high < 1
