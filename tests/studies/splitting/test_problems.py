"""The problems against their definitions: proximal maps, solutions, gaps."""

from __future__ import annotations

import numpy as np
import pytest

from studies.splitting.problems import Data, Logistic, Problem

SQUARES = Data(3, 30, 4, noise=1.0)
LABELS = Data(3, 60, 4)


@pytest.mark.parametrize("data", [SQUARES, LABELS])
@pytest.mark.parametrize("eta", [1e-4, 0.05, 10.0])
def test_the_proximal_point_is_stationary(data: Data, eta: float) -> None:
    problem = data.draw()
    points = np.random.default_rng(3).standard_normal(problem.shape)
    found = problem.prox(points, eta)
    np.testing.assert_allclose(eta * problem.gradient(found) + found, points, atol=1e-10)
    again = problem.prox(points, eta, found + 0.1)
    np.testing.assert_allclose(again, found, atol=1e-9)


@pytest.mark.parametrize("data", [SQUARES, LABELS])
def test_the_gap_is_that_of_the_values_and_0_at_the_solution(data: Data) -> None:
    problem = data.draw()
    everywhere = np.tile(problem.solution, (3, 1))
    assert abs(problem.gradient(everywhere).sum(0)).max() < 1e-9
    assert problem.gap(problem.solution) == 0
    model = problem.solution + np.array([0.1, -0.2, 0.3, 0.0])
    assert problem.gap(model) == pytest.approx(value(data, model) - value(data, problem.solution))


def value(data: Data, model: np.ndarray) -> float:
    """Return f by its definition, from records drawn in the same order."""
    problem: Problem = data.draw()
    if isinstance(problem, Logistic):
        margins = problem.features @ model
        return float((np.log1p(np.exp(margins)) - problem.labels * margins).sum())
    rng, total = np.random.default_rng(data.seed), 0.0
    truth = rng.standard_normal(data.features)
    for _ in range(data.clients):
        features = rng.standard_normal((data.records, data.features))
        targets = features @ truth + (data.noise or 0.0) * rng.standard_normal(data.records)
        total += 0.5 * float(((features @ model - targets) ** 2).sum())
    return total


def test_gradients_are_those_of_the_values() -> None:
    for data in (SQUARES, LABELS):
        problem, model, away = data.draw(), np.ones(4), np.array([1e-5, 0, 0, 0])
        slope = (value(data, model + away) - value(data, model - away)) / 2e-5
        assert problem.gradient(np.ones((3, 4))).sum(0)[0] == pytest.approx(slope, rel=1e-6)
