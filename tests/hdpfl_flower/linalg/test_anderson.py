"""Anderson mixing: the least affine combination, where the Gram matrix is regular and where not."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.linalg.anderson import mixing_weights
from strategies.splitting.scheme import FEDPROX, Scheme
from studies.splitting.methods import accelerate

GENERATOR = np.random.default_rng(7)


def residual(weights: np.ndarray, rows: np.ndarray) -> float:
    return float(np.linalg.norm(weights @ rows))


@pytest.mark.parametrize("m", [1, 2, 5, 20])
def test_regular_gram_matrices_have_the_closed_form(m: int) -> None:
    rows = GENERATOR.standard_normal((m, 50))
    gram = rows @ rows.T
    found, ones = mixing_weights(gram), np.linalg.solve(gram, np.ones(m))
    np.testing.assert_allclose(found, ones / ones.sum(), rtol=1e-8, atol=1e-9)
    assert found.sum() == pytest.approx(1, abs=1e-14)


def test_a_residual_of_zero_is_found_where_the_pseudoinverse_leaves_one() -> None:
    """Of two residuals of which one is 0 the pseudoinverse takes the other alone."""
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    gram = rows @ rows.T
    pseudo = np.linalg.pinv(gram) @ np.ones(3)
    assert residual(pseudo / pseudo.sum(), rows) == pytest.approx(0.5**0.5)
    found = mixing_weights(gram)
    assert residual(found, rows) < 1e-9
    np.testing.assert_allclose(found, [0, 1, 0], atol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e300])
def test_equal_residuals_get_equal_weights_at_any_scale(scale: float) -> None:
    np.testing.assert_allclose(mixing_weights(np.full((3, 3), scale)), 1 / 3, rtol=1e-6)


# --- least squares over clients ------------------------------------------------------------------


def rounds_needed(scheme: Scheme, memory: int, limit: int = 600) -> int:
    """Return the rounds until the model is within 1e-5 of the limit; 10 clients, d = 30."""
    n, d, eta = 10, 30, 1e-4
    generator = np.random.default_rng(1)
    records = generator.standard_normal((n, 500, d))
    values = records @ generator.standard_normal(d) + generator.standard_normal((n, 500))
    hessians = np.einsum("nkd,nke->nde", records, records)
    gradients = np.einsum("nkd,nk->nd", records, values)
    inverses, weights = np.linalg.inv(np.eye(d) + eta * hessians), np.full(n, 1 / n)

    def step(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scheme.step(u, np.einsum("nde,ne->nd", inverses, u + eta * gradients), weights)

    if scheme.beta == 1:
        shares = np.eye(d) - inverses.mean(axis=0)
        star = np.linalg.solve(shares, np.einsum("nde,ne->d", inverses, eta * gradients) / n)
    else:
        star = np.linalg.solve(hessians.sum(axis=0), gradients.sum(axis=0))
    u, points, images = np.zeros((n, d)), [], []
    for e in range(limit):
        image, model = step(u)
        if np.linalg.norm(model - star) < 1e-5:
            return e
        points, images = [*points, u], [*images, image]
        u = accelerate(points, images, memory) if memory else image
    return limit


def test_fedprox_needs_a_tenth_of_the_rounds() -> None:
    assert rounds_needed(FEDPROX, 2) <= rounds_needed(FEDPROX, 0) / 10


def test_the_first_rounds_are_plain_and_later_ones_use_the_last_points_alone() -> None:
    points = list(GENERATOR.standard_normal((5, 2, 3)))
    images = list(GENERATOR.standard_normal((5, 2, 3)))
    assert accelerate(points[:2], images[:2], memory=2) is images[1]
    found = accelerate(points, images, memory=2)
    np.testing.assert_array_equal(found, accelerate(points[2:], images[2:], memory=2))
    assert found.shape == (2, 3)
