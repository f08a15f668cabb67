"""The scheme against the mathematics of its fixed points, on least squares in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from strategies.splitting.scheme import FEDPI, FEDPROX, FEDRP, FEDSPLIT, Floats, Scheme
from studies.splitting.problems import Data, LeastSquares, Problem

ETA = 0.02
UNIFORM = np.full(4, 1 / 4)


def problem(seed: int) -> LeastSquares:
    drawn = Data(4, 12, 3, noise=2.0, seed=seed).draw()
    assert isinstance(drawn, LeastSquares)
    return drawn


def step(scheme: Scheme, solved: Problem, points: Floats) -> tuple[Floats, Floats]:
    return scheme.step(points, solved.prox(points, ETA), UNIFORM)


def regularised(solved: LeastSquares, eta: float) -> npt.NDArray[np.float64]:
    """Return the minimiser of the sum of Moreau envelopes: Σ H(I + ηH)⁻¹(x − x_i) = 0."""
    own = np.linalg.solve(solved.hessians, solved.linear[..., None])
    pulls = solved.hessians @ np.linalg.inv(np.eye(3) + eta * solved.hessians)
    return np.linalg.solve(pulls.sum(0), (pulls @ own).sum(0))[:, 0]


def fixed_point(scheme: Scheme, solved: LeastSquares) -> tuple[Floats, Floats, float]:
    """Return u = T(u), the model there, and the spectral radius of T, which is affine."""
    shape = solved.shape
    offset = step(scheme, solved, np.zeros(shape))[0].ravel()
    units = np.eye(offset.size).reshape(-1, *shape)
    linear = np.array([step(scheme, solved, unit)[0].ravel() - offset for unit in units]).T
    points = np.linalg.solve(np.eye(offset.size) - linear, offset).reshape(shape)
    radius = float(abs(np.linalg.eigvals(linear)).max())
    return points, step(scheme, solved, points)[1], radius


@pytest.mark.parametrize("seed", range(20))
def test_any_fixed_point_minimises_the_problem_regularised_at_the_effective_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scheme = Scheme(*rng.uniform(0.1, 1.9, size=2), rng.uniform(0.1, 1.0))
    solved = problem(seed)
    _, model, radius = fixed_point(scheme, solved)
    assert radius < 1  # it converges there
    expected = regularised(solved, scheme.effective_step(ETA))
    np.testing.assert_allclose(model, expected, atol=1e-8)
    assert abs(expected - solved.solution).max() > 1e-4  # which is not the original solution


@pytest.mark.parametrize("seed", range(3))
def test_the_named_schemes_solve_what_the_table_says(seed: int) -> None:
    solved = problem(seed)
    at = {eta: regularised(solved, eta) for eta in (0.0, ETA / 2, ETA)}
    np.testing.assert_allclose(at[0.0], solved.solution, atol=1e-10)
    for scheme, eta in ((FEDPROX, ETA), (FEDRP, ETA), (FEDSPLIT, 0.0), (FEDPI, 0.0),
                        (Scheme(1, 2, 1), ETA / 2)):  # fmt: skip
        np.testing.assert_allclose(fixed_point(scheme, solved)[1], at[eta], atol=1e-9)


def test_fedpi_is_spingarns_method_of_partial_inverses() -> None:
    """u = x + ηy with x in H and y in its complement; both have a step of their own."""
    solved = problem(3)
    primal = np.random.default_rng(3).standard_normal(solved.shape)
    primal = np.tile(primal.mean(0), (4, 1))
    dual, points = np.zeros(solved.shape), primal
    for _ in range(50):
        closest = solved.prox(primal + ETA * dual, ETA)
        left = (primal + ETA * dual - closest) / ETA
        primal, dual = np.tile(closest.mean(0), (4, 1)), left - left.mean(0)
        points = step(FEDPI, solved, points)[0]
        np.testing.assert_allclose(points, primal + ETA * dual, atol=1e-12)
