"""Functions for a notebook: weights without units, an audit that brackets the truth, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from hdpfl_flower import audit, epsilon_weights, inverse_variance_weights, mmse_weights
from hdpfl_flower.errors import AccountingError, EstimationError
from hdpfl_flower.privacy.accounting import Steps, calibrate

D = 5000
EPSILON, DELTA = 1.0, 1e-5


def updates(scales: dict[str, float], unit: float = 1.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(4)
    signal = draw.standard_normal(D)
    return {
        name: (unit * (signal + scale * draw.standard_normal(D))).astype(np.float32)
        for name, scale in scales.items()
    }


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_mmse_weights_are_near_the_inverse_variances_in_every_unit(unit: float) -> None:
    """Of clients that differ in their noise alone; the quietest one has the largest weight."""
    scales = {"loud": 8.0, "quiet": 0.5, "middle": 2.0, "other": 1.0}
    weights = mmse_weights(updates(scales, unit))
    precision = {name: scale**-2 for name, scale in scales.items()}
    expected = {name: value / sum(precision.values()) for name, value in precision.items()}
    assert sum(weights.values()) == pytest.approx(1)
    assert weights == pytest.approx(expected, rel=0.3, abs=0.02)
    assert max(weights, key=lambda name: weights[name]) == "quiet"


def test_mmse_weights_without_noise_are_shares_of_the_records() -> None:
    draw = np.random.default_rng(1)
    different = {name: draw.standard_normal(D) for name in "abc"}
    weights = mmse_weights(different, records={"a": 100, "b": 200, "c": 100}, rounds=50)
    assert weights == pytest.approx({"a": 0.25, "b": 0.5, "c": 0.25}, abs=0.1)


@pytest.mark.parametrize(
    ("given", "keys", "words"),
    [
        ({}, {}, "vectors of one length"),
        ({"a": np.zeros((2, 3))}, {}, "vectors of one length"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, {}, "vectors of one length"),
        ({"a": np.array([1.0, np.nan])}, {}, "not finite"),
        ({"a": np.ones(3)}, {"records": {"b": 3}}, "records must be at least 1"),
        ({"a": np.ones(3)}, {"records": {"a": 0}}, "records must be at least 1"),
        ({"a": np.ones(3)}, {"rounds": 0}, "rounds at least 1"),
    ],
)
def test_wrong_updates_are_named(given: Any, keys: Any, words: str) -> None:
    with pytest.raises(EstimationError, match=words):
        mmse_weights(given, **keys)


@pytest.mark.parametrize("weights", [inverse_variance_weights, epsilon_weights])
@pytest.mark.parametrize(
    "wrong", [np.ones((2, 2)), np.array([]), np.array([-1.0, 1.0]), np.array([np.nan, 1.0])]
)
def test_wrong_shapes_and_numbers_are_named(weights: Any, wrong: np.ndarray) -> None:
    with pytest.raises(EstimationError, match=r"per client|leave out"):
        weights(wrong)


# --- the audit ------------------------------------------------------------------------------------


def mechanism(noise: float, seed: int) -> Any:
    """Return a training of a Gaussian mechanism: its data set is a sum of clipped gradients."""
    draw = np.random.default_rng(seed)

    def train(total: float) -> np.ndarray:
        return np.array([total, 0.0, 0.0]) + noise * draw.standard_normal(3)

    return train


def test_a_bound_is_above_the_truth_as_rarely_as_it_says() -> None:
    """Of 200 audits at a confidence of .7 at most 3 in 10 are wrong, by a binomial at 1e-3.

    Of randomized response, whose ratio of errors is e^ε at every threshold.
    """
    epsilon = 2.0
    truth = 1 / (1 + np.exp(-epsilon))

    def response(draw: np.random.Generator) -> Any:
        return lambda bit: np.array([(draw.random() < abs(1 - bit - truth)) + draw.random()])

    bounds = [
        audit(response(np.random.default_rng(seed)), 0, 1, delta=0.0, runs=400, confidence=0.7)
        for seed in range(200)
    ]
    assert sum(audited.bound > epsilon for audited in bounds) <= stats.binom.ppf(0.999, 200, 0.3)


def test_a_training_with_a_quarter_of_its_noise_is_refuted() -> None:
    z = calibrate([Steps(1.0, 1)], EPSILON, DELTA)
    refuted = audit(mechanism(z / 4, 1), 0.0, 1.0, delta=DELTA, runs=2000)
    assert refuted.bound > EPSILON
    assert refuted.bound < refuted.estimate
    assert (refuted.confidence, refuted.runs) == (0.95, 2000)


def test_without_noise_the_bound_is_as_large_as_the_runs_allow() -> None:
    exact = audit(lambda total: torch.tensor([total]), 0.0, 1.0, delta=0.0, runs=400)
    assert np.log(200 / 5) < exact.bound < np.log(200 / 3)


def test_models_and_lists_of_arrays_are_results() -> None:
    draw = torch.Generator().manual_seed(0)

    def model(total: float) -> nn.Module:
        linear = nn.Linear(1, 1)
        with torch.no_grad():
            linear.weight.copy_(torch.randn(1, 1, generator=draw) + total)
        return linear

    assert audit(model, 0.0, 50.0, delta=0.0, runs=40).bound > 1
    assert audit(lambda total: [np.array([total]), np.ones(2)], 0.0, 1.0, delta=0.0, runs=40).bound


@pytest.mark.parametrize(
    ("train", "keys", "words"),
    [
        (mechanism(1.0, 0), {"runs": 10}, "at least 40 runs"),
        (mechanism(1.0, 0), {"confidence": 1.0}, "a confidence in"),
        (mechanism(1.0, 0), {"delta": 1.0}, "a delta in"),
        (lambda total: np.ones(1 + int(total)), {}, "different sizes"),
        (lambda total: np.array([np.inf]), {}, "not finite"),
    ],
)
def test_wrong_arguments_of_an_audit_are_named(train: Any, keys: Any, words: str) -> None:
    with pytest.raises(AccountingError, match=words):
        audit(train, 0.0, 1.0, **{"delta": DELTA, "runs": 40, **keys})
