"""MR-MTL's own procedure on School: what a pass does, whose mean it is, and what its ε is."""

from __future__ import annotations

import numpy as np
import pytest

from studies.natural.school_procedure import (
    BATCH,
    CLIP_NORM,
    EPSILON,
    PASSES,
    RATE,
    RULES,
    School,
    error_of,
    sigmas_of,
    train,
    unamplified,
)

LOCAL, BY_RECORDS, MR_MTL = RULES


def a_school(records: int, mark: float, features: int = 2) -> School:
    x = np.c_[np.random.default_rng(records).normal(size=(records, features)), np.ones(records)]
    y = np.full(records, mark)
    return School(x, y, x, y)


def test_a_pass_takes_whole_batches_and_leaves_out_the_rest() -> None:
    assert [(a_school(n, 0.5).batch, a_school(n, 0.5).batches) for n in (20, 32, 63, 64)] == [
        (20, 1),
        (BATCH, 1),
        (BATCH, 1),
        (BATCH, 2),
    ]


def test_a_step_without_noise_is_the_clipped_mean_gradient() -> None:
    school = a_school(20, 100.0)  # every gradient is longer than the clip norm
    (model,) = train([school], LOCAL, np.zeros(1), seed=0, passes=1)
    gradients = -100.0 * school.x
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    np.testing.assert_allclose(model, -RATE * (CLIP_NORM * gradients / norms).mean(axis=0))


def test_noise_is_added_to_the_sum_before_it_is_divided() -> None:
    """A school at its optimum moves by noise alone; of n records by an n-th of it."""
    for records in (8, 32):
        schools = [a_school(records, 0.0, features=400)]
        (model,) = train(schools, LOCAL, np.array([3.0]), seed=1, passes=1)
        # 401 squares of N(0, 3²): six standard deviations of their mean are 6·√(2/401) of it.
        found = np.mean((model * records / RATE) ** 2)
        assert found == pytest.approx(9.0, rel=6 * np.sqrt(2 / 401))


def test_fedavg_weighs_schools_by_their_training_pupils() -> None:
    schools = [a_school(10, 1.0), a_school(30, 0.2)]
    alone = train(schools, LOCAL, np.zeros(2), seed=0, passes=1)
    together = train(schools, BY_RECORDS, np.zeros(2), seed=0, passes=1)
    np.testing.assert_allclose(together[0], (10 * alone[0] + 30 * alone[1]) / 40)
    np.testing.assert_array_equal(together[0], together[1])


def test_mr_mtl_is_pulled_to_the_mean_within_the_clip_norm() -> None:
    schools = [a_school(10, 1.0), a_school(30, 0.2)]
    first = train(schools, LOCAL, np.zeros(2), seed=0, passes=1)
    second = train(schools, MR_MTL, np.zeros(2), seed=0, passes=2)
    mean = (10 * first[0] + 30 * first[1]) / 40
    for school, start, found in zip(schools, first, second, strict=True):
        gradients = (school.x @ start - school.y)[:, None] * school.x + (start - mean)
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped = gradients * np.minimum(1, CLIP_NORM / norms)
        np.testing.assert_allclose(found, start - RATE * clipped.mean(axis=0))


def test_a_school_of_one_batch_has_no_amplification_to_lose() -> None:
    few, many = sigmas_of([a_school(20, 0.5), a_school(150, 0.5)])
    # The same event on the same grid: the noise is rounded up, far within a hundredth.
    assert 0.99 * EPSILON < unamplified(few) <= EPSILON
    assert unamplified(many) > 2 * EPSILON
    assert PASSES == 201


def test_the_error_is_over_pupils_each_under_its_schools_model() -> None:
    schools = [a_school(10, 1.0), a_school(30, 0.0)]
    assert error_of(schools, np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])) == pytest.approx(3.0)
