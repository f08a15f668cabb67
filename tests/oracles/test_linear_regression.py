"""The closed forms of federated linear regression against drawn regressions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.oracles.linear_regression import (
    Floats,
    gaussian_alpha2,
    least_squares,
    matrix_lambda,
    orthogonal_alpha2,
    personal_estimate,
    precision_mean,
)
from tests.oracles.point_estimation import exact_lambda

D, N, BETA2, TAU2 = 4, 16, 2.0, 0.3
DRAWS = 4_000
ALARM = 6.0
"""Standard errors that a mean over DRAWS regressions may lie off: two in 10⁹ fail by chance."""


def design(kind: str, generator: np.random.Generator) -> Floats:
    """Return F, shape (N, D): independent normals, or made orthogonal with FᵀF = N·I."""
    rows = generator.standard_normal((N, D))
    return rows if kind == "gaussian" else np.linalg.qr(rows)[0] * math.sqrt(N)


def estimate(features: Floats, truth: Floats, generator: np.random.Generator) -> Floats:
    noise = generator.normal(0, math.sqrt(BETA2), N)
    return least_squares(features, features @ truth + noise)


@pytest.mark.parametrize("kind", ["orthogonal", "gaussian"])
def test_least_squares_has_the_predicted_variance(kind: str) -> None:
    generator = np.random.default_rng(1)
    found = np.array(
        [
            np.mean(estimate(design(kind, generator), np.zeros(D), generator) ** 2)
            for _ in range(DRAWS)
        ]
    )
    error = float(found.std()) / math.sqrt(DRAWS)
    alpha2 = {"orthogonal": orthogonal_alpha2(BETA2, N), "gaussian": gaussian_alpha2(BETA2, N, D)}
    other = "gaussian" if kind == "orthogonal" else "orthogonal"
    assert abs(float(found.mean()) - alpha2[kind]) < ALARM * error
    assert abs(float(found.mean()) - alpha2[other]) > ALARM * error


def test_for_multiples_of_the_identity_the_matrix_is_the_number() -> None:
    others = [0.7, 0.7, 3.1]
    found = matrix_lambda(0.4 * np.eye(D), TAU2, [v * np.eye(D) for v in others])
    np.testing.assert_allclose(found, exact_lambda(0.4, TAU2, others) * np.eye(D), atol=1e-12)


def test_the_matrix_attains_the_bayes_bound_under_any_designs_and_levels() -> None:
    """The mean of squared errors, each over its posterior variance, is 1: no estimate has less.

    Another Λ, and one number in its place, are worse on the same draws.
    """
    generator = np.random.default_rng(2)
    noise = [0.0, 0.4, 2.7, 0.4]  # that of each other client's update: three levels
    designs = [design("gaussian", generator) for _ in range(5)]
    covariances = [BETA2 * np.linalg.inv(f.T @ f) for f in designs]
    others = [c + (TAU2 + v) * np.eye(D) for c, v in zip(covariances[1:], noise, strict=True)]
    exact = matrix_lambda(covariances[0], TAU2, others)
    scalar = float(np.trace(exact)) / D * np.eye(D)
    precision = np.sum([np.linalg.inv(each) for each in others], axis=0)
    prior = TAU2 * np.eye(D) + np.linalg.inv(precision)
    posterior = np.linalg.inv(np.linalg.inv(covariances[0]) + np.linalg.inv(prior))
    errors = {"exact": np.zeros(DRAWS), "scalar": np.zeros(DRAWS), "doubled": np.zeros(DRAWS)}
    for draw in range(DRAWS):
        truths = generator.normal(0, math.sqrt(TAU2), (5, D))
        own = [estimate(f, t, generator) for f, t in zip(designs, truths, strict=True)]
        sent = [
            e + generator.normal(0, math.sqrt(v), D) for e, v in zip(own[1:], noise, strict=True)
        ]
        shared = precision_mean(sent, others)
        for name, pull in (("exact", exact), ("scalar", scalar), ("doubled", 2 * exact)):
            miss = personal_estimate(own[0], shared, pull) - truths[0]
            errors[name][draw] = miss @ miss
    found, predicted = float(errors["exact"].mean()), float(np.trace(posterior))
    assert abs(found - predicted) < ALARM * float(errors["exact"].std()) / math.sqrt(DRAWS)
    for name in ("scalar", "doubled"):
        worse = errors[name] - errors["exact"]
        assert float(worse.mean()) > ALARM * float(worse.std()) / math.sqrt(DRAWS)


def test_what_has_no_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 'dimension' \\+ 1"):
        gaussian_alpha2(1.0, 5, 4)
    with pytest.raises(ValueError, match="not linearly independent"):
        least_squares(np.ones((5, 2)), np.ones(5))
