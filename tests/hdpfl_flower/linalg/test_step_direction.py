"""The direction of a step: what is projected on it, and that there is none without a step."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_flower.linalg.step_direction import Direction

D = 150_000  # more than two blocks


def vectors(count: int = 3) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, D)).astype(np.float32)


def test_a_number_is_the_inner_product_with_the_unit_step() -> None:
    before, now, update = vectors()
    direction = Direction.between(before, now)
    step = (now - before).astype(np.float64)
    expected = step @ update.astype(np.float64) / np.linalg.norm(step)
    number = direction.project(update)
    assert (number.dtype, number.shape) == (np.float32, (1,))
    assert float(number[0]) == pytest.approx(expected, rel=2**-23)
    other = Direction.between(now, before)
    assert other.project(update) == -number


def test_what_is_lifted_lies_on_the_line_and_projects_to_itself() -> None:
    before, now, update = vectors()
    direction = Direction.between(before, now)
    lifted = direction.lift(-2.5)
    assert lifted.dtype == np.float32
    assert np.linalg.norm(lifted.astype(np.float64)) == pytest.approx(2.5, rel=1e-6)
    assert float(direction.project(lifted)[0]) == pytest.approx(-2.5, rel=1e-6)
    # what is left is perpendicular: 2⁻²⁴ of each coordinate, d of them
    rest = update - direction.lift(float(direction.project(update)[0]))
    assert abs(float(direction.project(rest)[0])) < 1e-3


@pytest.mark.parametrize(
    "now", [np.zeros(4), np.array([3e38, 0, 0, 0]), np.full(4, -3e38)], ids=["same", "far", "all"]
)
def test_no_step_or_one_of_no_finite_length_gives_no_direction(now: np.ndarray) -> None:
    before = np.zeros(4, np.float32)
    before[0] = 0 if not now.any() else -np.sign(now[0]) * np.float32(3e38)
    assert Direction.between(before, now.astype(np.float32)) is None
