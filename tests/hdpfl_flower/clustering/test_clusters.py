"""Clusters of first updates: the paper's map against scikit-learn, and ours under unequal noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from hdpfl_flower.clustering.by_direction import cluster_by_direction
from hdpfl_flower.clustering.clusters import cluster_updates, pca_picture, select_best_separated
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise, fit_mixture
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.noise_level import estimate_noise_levels

SIZES = (3, 6, 6, 6)
TRUTH = np.repeat(range(4), SIZES)
"""R-DPCFL's 21 clients; the first three are the minority."""

Noises = Callable[[np.random.Generator], npt.NDArray[np.float64]]


def equal(_: np.random.Generator) -> npt.NDArray[np.float64]:
    return np.full(21, 0.1)


def unequal(generator: np.random.Generator) -> npt.NDArray[np.float64]:
    """Standard deviations as of ε 10, 3, 1, .5 or so, dealt out without regard to clusters."""
    return generator.permutation(np.resize([0.03, 0.05, 0.1, 0.3], 21))


def first_updates(
    seed: int, noises: Noises, gap: float, d: int = 5000, apart: float = 1.0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return updates and their noise variances: a common part, a cluster's of length ``gap``.

    The second cluster lies the share ``apart`` of its way from the first.
    """
    generator = np.random.default_rng(seed)
    common = 0.02 * generator.standard_normal(d)
    centres = generator.standard_normal((4, d))
    centres *= gap / np.linalg.norm(centres, axis=1)[:, None]
    centres[1] = centres[0] + apart * (centres[1] - centres[0])
    stds = noises(generator)
    noise = stds[:, None] * generator.standard_normal((21, d))
    return (common + centres[TRUTH] + noise).astype(np.float32), stds**2


def finds_all(assignment: npt.NDArray[np.int64]) -> bool:
    """Tell whether the clusters are the true ones, whatever their numbers."""
    together = assignment[:, None] == assignment[None, :]
    return bool(np.array_equal(together, TRUTH[:, None] == TRUTH[None, :]))


def finds_minority(assignment: npt.NDArray[np.int64]) -> bool:
    """Tell whether the first three clients, and no others, share a cluster."""
    return bool(np.array_equal(assignment == assignment[0], TRUTH == 0))


SEEDS = range(4)
BOTH = [cluster_updates, cluster_by_noise]


def test_the_picture_is_the_authors_own_made_by_the_library() -> None:
    updates, _ = first_updates(5, unequal, 2.0, d=20_000)
    updates[:, 7] = 0.25  # a coordinate that all share
    scaled = StandardScaler().fit_transform(updates.astype(np.float64))
    library = PCA(2, svd_solver="full").fit(scaled).transform(updates.astype(np.float64))
    expected, found = MinMaxScaler().fit_transform(library), pca_picture(updates)
    for axis in range(2):  # a principal component has no sign
        off = min(
            np.abs(found[:, axis] - expected[:, axis]).max(),
            np.abs(found[:, axis] - 1 + expected[:, axis]).max(),
        )
        assert off < 1e-8


@pytest.mark.parametrize("models", [4, 0])
@pytest.mark.parametrize("cluster", BOTH)
def test_both_find_the_clusters_under_equal_noise(cluster: object, models: int) -> None:
    for seed in SEEDS if models else SEEDS[:2]:
        found = cluster(first_updates(seed, equal, 3.0)[0], models)  # type: ignore[operator]
        assert finds_all(found.assignment)
        assert finds_minority(found.assignment)
        assert found.separated
        assert found.confidence.min() > 0.99
        assert sorted(found.sizes) == [3, 6, 6, 6]
        assert np.allclose(found.shares.sum(axis=1), 1)


@pytest.mark.parametrize("models", [4, 0])
def test_unequal_noise_hides_the_minority_from_the_papers_map_alone(models: int) -> None:
    for seed in SEEDS if models else (0, 5):
        updates, _ = first_updates(seed, unequal, 1.5)
        theirs, ours = cluster_updates(updates, models), cluster_by_noise(updates, models)
        assert not finds_minority(theirs.assignment)
        assert not theirs.separated
        assert finds_minority(ours.assignment)
        assert ours.shares.shape[1] == 4
        assert ours.mss > 2


@pytest.mark.parametrize("noises", [equal, unequal])
@pytest.mark.parametrize("cluster", BOTH)
def test_pure_noise_is_not_separated(cluster: object, noises: object) -> None:
    for seed in range(2):
        updates, _ = first_updates(seed, noises, 0.0)  # type: ignore[arg-type]
        for models in (0, 4):
            assert not cluster(updates, models).separated  # type: ignore[operator]


def test_clusters_buried_in_noise_are_not_trusted() -> None:
    """Here the separation alone would be believed, and nothing is right."""
    updates, _ = first_updates(10, equal, 1.0)
    found = cluster_by_noise(updates)
    assert not finds_minority(found.assignment)
    assert found.mss > 2
    assert found.sizes.min() > 1
    assert not found.separated


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_two_groups_close_to_each_other_are_not_merged_for_a_larger_separation(seed: int) -> None:
    """The largest MSS is that of three clusters, two groups in one of them."""
    updates, _ = first_updates(seed, equal, 3.0, apart=0.8)
    assert finds_all(cluster_by_noise(updates).assignment)
    fits = [cluster_by_noise(updates, models) for models in range(2, 11)]
    largest = select_best_separated(fits)
    assert len(largest.sizes) == 3
    assert largest.separated


def test_exact_noise_is_taken_where_it_is_known() -> None:
    updates, variances = first_updates(3, unequal, 1.5)
    assert finds_all(cluster_by_noise(updates, 4, variances).assignment)
    found = estimate_noise_levels(updates)
    assert np.allclose(
        cluster_by_noise(updates, 4, found).shares, cluster_by_noise(updates, 4).shares
    )
    with pytest.raises(StrategyError, match="positive number"):
        cluster_by_noise(updates, 4, np.append(variances[1:], 0.0))


def test_the_mixture_finds_the_width_beyond_noise() -> None:
    """Two clusters in one dimension: means and width against what was put in."""
    generator = np.random.default_rng(2)
    truth = np.repeat([0, 1], 2000)
    noise = generator.choice([0.01, 1.0], (4000, 1))
    points = np.where(truth, 6.0, 0.0)[:, None]
    points = points + np.sqrt(noise + 0.25) * generator.standard_normal((4000, 1))
    shares, means, widths = fit_mixture(points, noise, 2)
    assert np.sort(means[:, 0]) == pytest.approx([0, 6], abs=0.1)
    harmonic = math.sqrt(2 / (1 / 0.26 + 1 / 1.25))
    assert widths == pytest.approx([harmonic, harmonic], rel=0.05)
    right = (np.argmax(shares, axis=1) == truth).mean()
    assert max(right, 1 - right) > 0.99


@pytest.mark.parametrize("cluster", BOTH)
def test_bad_numbers_of_clusters_are_refused_by_name(cluster: object) -> None:
    updates = first_updates(0, equal, 3.0, d=200)[0]
    for models in (1, 22, -1):
        with pytest.raises(StrategyError, match=f"{models} clusters of 21 clients"):
            cluster(updates, models)  # type: ignore[operator]
    with pytest.raises(StrategyError, match="at least 2 clients"):
        cluster(updates[:1])  # type: ignore[operator]


# --- clusters by direction: whatever the updates' lengths, and silent where nothing is to be seen


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
