"""Clusters by direction: whatever the updates' lengths, and silent where nothing is to be seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from hdpfl_flower.clustering.by_direction import cluster_by_direction
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise
from tests.hdpfl_flower.clustering.clustered import TRUTH, finds_all

D = 4000
STEPS = np.resize([10.0, 1.0], 21)
"""Local steps, dealt out across the groups: every group has sites of both kinds."""


def updates_of(
    seed: int, steps: npt.NDArray[np.float64], gap: float = 1.5, common: float = 4.0
) -> npt.NDArray[np.float32]:
    """Return updates that grow with the steps, and noise that grows with their root."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((4, D))
    centres *= gap / np.linalg.norm(centres, axis=1)[:, None]
    shared = generator.standard_normal(D)
    shared *= common / np.linalg.norm(shared)
    noise = 0.02 * np.sqrt(steps)[:, None] * generator.standard_normal((21, D))
    return (steps[:, None] * (shared + centres[TRUTH]) + noise).astype(np.float32)


@pytest.mark.parametrize("models", [4, 0])
def test_unequal_steps_hide_the_groups_from_positions_and_not_from_directions(models: int) -> None:
    for seed in range(4):
        updates = updates_of(seed, STEPS)
        found = cluster_by_direction(updates, models)
        assert finds_all(found.assignment)
        assert found.separated
        assert found.misplaced < 0.01
        assert not finds_all(cluster_by_noise(updates, models).assignment)


def test_the_length_of_an_update_does_not_matter() -> None:
    updates, variances = updates_of(0, np.ones(21)), np.full(21, 4e-4)
    lengths = np.random.default_rng(1).uniform(0.1, 10, 21)
    one = cluster_by_direction(updates, 4, variances)
    other = cluster_by_direction(
        (lengths[:, None] * updates).astype(np.float32), 4, variances * lengths**2
    )
    np.testing.assert_array_equal(one.assignment, other.assignment)
    assert other.mss == pytest.approx(one.mss, rel=1e-3)


def runs_that_separate(common: float, noises: npt.NDArray[np.float64], runs: int) -> int:
    """Return in how many runs with nothing but a common part and noise the clusters separate."""
    generator, found = np.random.default_rng(7), 0
    way = generator.standard_normal(1000)
    way *= common / np.linalg.norm(way)
    for _ in range(runs):
        rows = way + noises[:, None] * generator.standard_normal((12, 1000))
        found += cluster_by_direction(rows.astype(np.float32), 0, noises**2).separated
    return found


@pytest.mark.slow
@pytest.mark.parametrize("common", [0.0, 0.5, 3.0])
def test_noise_and_a_common_part_make_no_clusters(common: float) -> None:
    """At most 1 run in 1,000 shows a direction too many; false alarm 1e-6.

    With directions that do not stand out of the noise left in, 4 runs in 10 separate at 3.0.
    """
    runs, shapes = 10, (np.full(12, 0.1), np.resize([0.03, 0.1, 0.3], 12))
    allowed = int(stats.binom.isf(1e-6, 2 * runs, 1e-3))
    assert stats.binom.cdf(allowed, 2 * runs, 0.4) < 0.02
    assert sum(runs_that_separate(common, noises, runs) for noises in shapes) <= allowed
