"""Clusters of first updates: the paper's map against scikit-learn, and ours under unequal noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from hdpfl_flower.clustering.clusters import (
    Clusters,
    candidate_models,
    cluster_updates,
    last_soft_round,
    pca_picture,
    select_best_separated,
    separations_of,
)
from hdpfl_flower.clustering.noise_mixture import (
    cluster_by_noise,
    fit_mixture,
    select_finest_separated,
    weighted_picture,
)
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.noise_level import estimate_noise_levels
from hdpfl_flower.linalg.sums import inner_products
from tests.hdpfl_flower.clustering.clustered import (
    TRUTH,
    Counted,
    equal,
    finds_all,
    finds_minority,
    first_updates,
    passes,
    unequal,
)

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


def test_a_large_separation_may_be_one_client() -> None:
    """Under unequal noise the paper's measure is beyond 2 with nothing found: a warning is due."""
    found = cluster_updates(first_updates(0, unequal, 1.5)[0])
    assert found.mss > 10
    assert found.sizes.min() == 1
    assert not finds_minority(found.assignment)
    assert not found.separated


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


def test_a_cluster_of_one_client_does_not_make_a_fit_the_finest() -> None:
    """Of two fits as good as each other that with more clusters is taken, if all are of several."""
    few, many, alone = (
        Clusters(np.eye(len(sizes))[np.repeat(range(len(sizes)), sizes)], np.zeros((6, 1)),
                 separations_of(np.arange(float(len(sizes)))[:, None] * gap, np.ones(len(sizes))))
        for sizes, gap in (((3, 3), 6.0), ((2, 2, 2), 5.0), ((1, 1, 2, 2), 5.0))
    )  # fmt: skip
    assert select_finest_separated([few, many, alone]) is many
    assert select_finest_separated([few, alone]) is few
    assert select_finest_separated([alone]) is alone


def test_exact_noise_is_taken_where_it_is_known() -> None:
    updates, variances = first_updates(3, unequal, 1.5)
    assert finds_all(cluster_by_noise(updates, 4, variances).assignment)
    found = estimate_noise_levels(updates)
    assert np.allclose(
        cluster_by_noise(updates, 4, found).shares, cluster_by_noise(updates, 4).shares
    )
    with pytest.raises(StrategyError, match="positive number"):
        cluster_by_noise(updates, 4, np.append(variances[1:], 0.0))


def test_the_pictures_noise_is_what_the_mixture_is_told() -> None:
    """Squared gaps to the true clusters' means over the told variance: 1, drawn together."""
    ratios = []
    for seed in range(8):
        updates, variances = first_updates(
            seed, lambda generator: np.exp(generator.uniform(-3.5, -1.5, 21)), 2.0
        )
        points, scales, _ = weighted_picture(inner_products(updates), 5000, variances)
        told = variances[:, None] * scales[:3]
        assert scales[2] > 1.2  # drawn in, and so to be tested
        for cluster in range(4):
            mine = np.equal(TRUTH, cluster)
            weights = 1 / told[mine]
            centre = (weights * points[mine, :3]).sum(axis=0) / weights.sum(axis=0)
            squares = (weights * (points[mine, :3] - centre) ** 2).sum() / 3
            ratios.append(squares / (mine.sum() - 1))
    assert 0.9 < np.mean(ratios) < 1.1


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
    assert (np.argmax(shares, axis=1) == truth).mean() in (pytest.approx(1, abs=0.01),
                                                           pytest.approx(0, abs=0.01))  # fmt: skip


def test_separation_overlap_and_the_last_soft_round() -> None:
    means = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 12.0]])
    table = separations_of(means, np.array([1.0, 2.0, 1.0]))
    assert table[0, 1] == table[1, 0] == 5 / 4
    assert table[0, 2] == 6
    shares = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.0, 0.3, 0.7]])
    found = Clusters(shares, means, table)
    assert found.mss == 5 / 4
    assert found.mpo == pytest.approx(2 * stats.norm.sf(1.25), rel=1e-12)
    assert found.assignment.tolist() == [0, 1, 2]
    assert found.confidence.tolist() == [0.9, 0.8, 0.7]
    assert not found.separated
    # MSS 3 is an overlap of 0.0027: 99 of 200 rounds; no separation at all: none.
    assert last_soft_round(2 * float(stats.norm.sf(3)), 200) == 99
    assert last_soft_round(1.0, 200) == 0


def test_an_empty_cluster_is_not_separated() -> None:
    table = np.full((2, 2), 5.0)
    assert not Clusters(np.array([[1.0, 0.0], [1.0, 0.0]]), np.zeros((2, 1)), table).separated
    whole = np.repeat(np.eye(2), 2, axis=0)
    assert Clusters(whole, np.zeros((4, 1)), table).separated


@pytest.mark.parametrize("cluster", BOTH)
def test_bad_numbers_of_clusters_are_refused_by_name(cluster: object) -> None:
    updates = first_updates(0, equal, 3.0, d=200)[0]
    for models in (1, 22, -1):
        with pytest.raises(StrategyError, match=f"{models} clusters of 21 clients"):
            cluster(updates, models)  # type: ignore[operator]
    with pytest.raises(StrategyError, match="at least 2 clients"):
        cluster(updates[:1])  # type: ignore[operator]


@pytest.mark.parametrize("cluster", BOTH)
def test_two_clients_and_as_many_clusters_as_clients(cluster: object) -> None:
    """Nothing breaks, nothing is NaN, and nothing is trusted."""
    updates = first_updates(0, equal, 3.0, d=400)[0]
    for few, models in ((updates[[0, 20]], 0), (updates[[0, 5, 20]], 3), (updates[[0, 5, 20]], 0)):
        found = cluster(few, models)  # type: ignore[operator]
        assert np.isfinite(found.shares).all()
        assert np.isfinite(found.positions).all()
        assert not math.isnan(found.mss)
        assert not found.separated


def test_candidates_stop_at_ten_and_below_the_clients() -> None:
    assert list(candidate_models(60, 0)) == list(range(2, 11))
    assert list(candidate_models(5, 0)) == [2, 3, 4]
    assert list(candidate_models(2, 0)) == [2]
    assert list(candidate_models(60, 60)) == [60]


@pytest.mark.parametrize("cluster", BOTH)
def test_the_same_updates_give_the_same_clusters_and_are_not_written_to(cluster: object) -> None:
    updates = first_updates(1, unequal, 2.0, d=2000)[0]
    before = updates.copy()
    updates.setflags(write=False)
    one, other = (cluster(updates, 4) for _ in range(2))  # type: ignore[operator]
    assert np.array_equal(one.shares, other.shares)
    assert np.array_equal(one.positions, other.positions)
    assert np.array_equal(updates, before)


@pytest.mark.parametrize("cluster", BOTH)
def test_the_order_of_the_clients_changes_no_cluster(cluster: object) -> None:
    updates = first_updates(2, equal, 3.0)[0]
    order = np.random.default_rng(0).permutation(21)
    assert finds_all(cluster(updates[order], 4).assignment[np.argsort(order)])  # type: ignore[operator]


def test_sixty_clients_are_clustered_in_few_passes() -> None:
    """The bar is 15 passes over 60 × 1,000,000; the number of candidates costs none."""
    updates = np.random.default_rng(0).standard_normal((60, 40_000)).astype(np.float32)
    assert passes(updates, cluster_updates) == pytest.approx(1, abs=0.01)
    small = passes(updates, lambda matrix: cluster_by_noise(matrix, 2))
    # A fixed sample of 20,000 coordinates is half of this matrix and a fiftieth of a million.
    assert small <= 4
    known = passes(updates, lambda matrix: cluster_by_noise(matrix, 3, np.ones(60)))
    assert known == pytest.approx(1, abs=0.01)


def test_the_counter_of_passes_counts() -> None:
    matrix = np.ones((3, 4), np.float32)
    assert passes(matrix, lambda m: m + 1) == 1
    assert passes(matrix, lambda m: (m[:, :2], m[:, 2:], m @ m.T)) == 3
    assert passes(matrix, lambda m: np.take(m, [0], axis=1)) == pytest.approx(1 / 4)
    assert passes(matrix, lambda m: [row.any() for row in m]) == 1
    assert Counted.read == 12
