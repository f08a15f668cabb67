"""Anderson mixing: the least affine combination, where the Gram matrix is regular and where not."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.linalg.anderson import mixing_weights
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


def test_the_first_rounds_are_plain_and_later_ones_use_the_last_points_alone() -> None:
    points = list(GENERATOR.standard_normal((5, 2, 3)))
    images = list(GENERATOR.standard_normal((5, 2, 3)))
    assert accelerate(points[:2], images[:2], memory=2) is images[1]
    found = accelerate(points, images, memory=2)
    np.testing.assert_array_equal(found, accelerate(points[2:], images[2:], memory=2))
    assert found.shape == (2, 3)
