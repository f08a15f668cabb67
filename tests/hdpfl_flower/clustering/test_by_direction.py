"""Clusters by direction: whatever the updates' lengths, and silent where nothing is to be seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from hdpfl_flower.clustering.by_direction import cluster_by_direction, select_most_certain
from hdpfl_flower.clustering.clusters import Clusters
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise
from hdpfl_flower.errors import StrategyError
from tests.hdpfl_flower.clustering.clustered import TRUTH, finds_all, passes

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


def test_equal_steps_are_no_worse() -> None:
    for seed in range(4):
        found = cluster_by_direction(updates_of(seed, np.ones(21)))
        assert finds_all(found.assignment)
        assert found.separated


def test_the_length_of_an_update_does_not_matter() -> None:
    updates, variances = updates_of(0, np.ones(21)), np.full(21, 4e-4)
    lengths = np.random.default_rng(1).uniform(0.1, 10, 21)
    one = cluster_by_direction(updates, 4, variances)
    other = cluster_by_direction(
        (lengths[:, None] * updates).astype(np.float32), 4, variances * lengths**2
    )
    np.testing.assert_array_equal(one.assignment, other.assignment)
    assert other.mss == pytest.approx(one.mss, rel=1e-3)


def test_two_opposite_groups_have_nothing_in_common_and_are_found() -> None:
    """One direction shows them; that none is common must not count against them."""
    generator = np.random.default_rng(3)
    way = 4 * generator.standard_normal(D) / np.sqrt(D)
    signs = np.resize([1.0, -1.0], 8)
    rows = signs[:, None] * way + 0.03 * generator.standard_normal((8, D))
    found = cluster_by_direction(rows.astype(np.float32), 2)
    assert found.separated
    np.testing.assert_array_equal(found.assignment == found.assignment[0], signs == 1)


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


def test_noise_alone_is_not_above_noise() -> None:
    """Once in 1,000 runs it is; 20 runs, a false alarm of 1e-6."""
    generator, shown = np.random.default_rng(4), 0
    for _ in range(20):
        rows = (0.1 * generator.standard_normal((12, 1000))).astype(np.float32)
        shown += cluster_by_direction(rows, 2, np.full(12, 0.01)).above_noise
    assert shown <= stats.binom.isf(1e-6, 20, 1e-3)


def test_the_most_certain_clusters_are_taken_and_of_equals_the_finest() -> None:
    def fit(*sizes: int) -> Clusters:
        models = len(sizes)
        shares = np.eye(models)[np.repeat(range(models), sizes)]
        return Clusters(shares, np.zeros((8, 1)), np.full((models, models), 9.0))

    two, three, four, alone = fit(4, 4), fit(4, 2, 2), fit(2, 2, 2, 2), fit(2, 2, 2, 1, 1)
    assert select_most_certain([two, three, four, alone], [1e-9, 1e-8, 1e-3, 0.0]) is three
    assert select_most_certain([two, four], [1e-9, 1e-3]) is two
    assert select_most_certain([alone], [0.0]) is alone


def test_sites_that_may_be_anywhere_count_as_misplaced() -> None:
    shares = np.array([[1.0, 0.0], [0.9, 0.1], [0.5, 0.5]])
    gaps = np.array([[np.inf, 5.0], [5.0, np.inf]])
    assert Clusters(shares, np.zeros((3, 1)), gaps).misplaced == pytest.approx(0.6)


def test_few_passes_whatever_the_number_of_clusters() -> None:
    assert passes(updates_of(0, STEPS), cluster_by_direction) <= 4


def test_what_cannot_be_clustered_is_refused() -> None:
    rows = updates_of(0, STEPS)
    with pytest.raises(StrategyError, match="at least 2 clients"):
        cluster_by_direction(rows[:1])
    with pytest.raises(StrategyError, match="22 clusters of 21 clients"):
        cluster_by_direction(rows, 22)
    with pytest.raises(StrategyError, match="positive"):
        cluster_by_direction(rows, 4, np.zeros(21))
