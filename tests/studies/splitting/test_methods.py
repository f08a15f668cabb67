"""The methods of chapter 2 against their closed forms, and what the thesis claims of them."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.splitting.scheme import FEDPI, FEDPROX, FEDRP, FEDSPLIT
from studies.splitting.methods import Method, iterate
from studies.splitting.problems import Data, Floats, LeastSquares, Logistic, Problem

ETA = 1e-3


@pytest.fixture(scope="module")
def problem() -> LeastSquares:
    drawn = Data(5, 60, 4, noise=2.0).draw()
    assert isinstance(drawn, LeastSquares)
    return drawn


def end(method: Method, problem: LeastSquares, rounds: int = 600, eta: float = ETA) -> Floats:
    return list(iterate(method, problem, eta, rounds))[-1].model


def balanced(problem: LeastSquares, pulls: Floats) -> Floats:
    """Return x with Σ pullᵢ(x − xᵢ) = 0, xᵢ each client's own minimiser."""
    own = np.linalg.solve(problem.hessians, problem.linear[..., None])
    return np.linalg.solve(pulls.sum(0), (pulls @ own).sum(0))[:, 0]


@pytest.mark.parametrize("k", [1, 2, 5, 20])
def test_fedavg_ends_at_its_closed_form(problem: LeastSquares, k: int) -> None:
    steps = [np.linalg.matrix_power(np.eye(4) - ETA * h, k) for h in problem.hessians]
    expected = balanced(problem, np.eye(4) - np.array(steps))
    found = end(Method("", gradient_steps=k), problem)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert (abs(expected - problem.solution).max() < 1e-10) == (k == 1)


@pytest.mark.parametrize("scheme", [FEDPROX, FEDRP, FEDSPLIT, FEDPI])
@pytest.mark.parametrize("late", [False, True])
def test_acceleration_is_consistent(problem: LeastSquares, scheme: object, late: bool) -> None:
    method = Method("", scheme, memory=2, late=late)
    plain = Method("", scheme)
    np.testing.assert_allclose(end(method, problem, 150), end(plain, problem, 3000), atol=1e-9)


def test_acceleration_survives_collinear_and_zero_residuals() -> None:
    """In one dimension all residuals are collinear: G⁺1 leaves .71 where 0 can be had."""
    line = Data(1, 10, 1, noise=1.0).draw()
    found = list(iterate(Method("", memory=3), line, 1e-2, 20))
    np.testing.assert_allclose(found[-1].model, line.solution, atol=1e-12)
    again = list(iterate(Method("", memory=3), line, 1e-2, 20, start=found[-1].points))
    assert all(np.isfinite(one.points).all() for one in again)
    np.testing.assert_allclose(again[-1].model, line.solution, atol=1e-12)
    still = LeastSquares(np.eye(2)[None], np.zeros((1, 2)))  # T(0) = 0: every residual is 0
    assert all((one.points == 0).all() for one in iterate(Method("", memory=2), still, 0.1, 8))


# --- the problems against their definitions: proximal maps, solutions, gaps


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
