"""What is claimed of clusters: neither chance nor labels alone, and groups all the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from hdpfl_flower.clustering.by_direction import cluster_by_direction
from hdpfl_flower.clustering.claims import judged
from hdpfl_flower.clustering.clusters import LABEL_SKEW, ONE, SEVERAL, UNCHECKED, Clusters
from hdpfl_flower.clustering.label_skew import HeadMeans, explained_pairs
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise, fit_clusters
from hdpfl_flower.clustering.one_cluster import is_one_cluster
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.types import Updates
from tests.hdpfl_flower.clustering.headed import (
    CLASSES,
    HEAD,
    INPUTS,
    Shares,
    class_means,
    drawn_shares,
    noised,
    of_classes,
    relabelled,
    swapped,
    turned,
    two_profiles,
    update_of,
)

NOISE = 0.004
EVEN = np.full(CLASSES, 1 / CLASSES)
LABELS: dict[str, Callable[[int], list[Shares]]] = {
    "two profiles": lambda _: two_profiles(14),
    "two classes": lambda seed: of_classes(2, 12, seed),
    "three classes": lambda seed: of_classes(3, 21, seed),
    "Dirichlet(.3)": lambda seed: drawn_shares(0.3, 15, seed),
}
GROUPS = {
    "turned 4/5/9": (turned, np.repeat(range(3), (4, 5, 9))),
    "turned 3/6/6/6": (turned, np.repeat(range(4), (3, 6, 6, 6))),
    "relabelled 3/6/6/6": (relabelled, np.repeat(range(4), (3, 6, 6, 6))),
    "swapped 9/9": (swapped, np.repeat(range(2), 9)),
}


def claim_of(
    updates: Updates, head: Head | None = HEAD, by_direction: bool = False
) -> tuple[Clusters, Clusters]:
    """Return the map's clusters, and what is claimed of them."""
    variances = np.full(len(updates), NOISE**2)
    find = cluster_by_direction if by_direction else cluster_by_noise
    found = find(updates, 0, variances)
    return found, judged(found, updates, variances, head, by_direction)


def are(found: Clusters, truth: Sequence[int] | npt.NDArray[np.int64]) -> bool:
    own, true = found.assignment, np.array(truth)
    return np.array_equal(own[:, None] == own, true[:, None] == true)


def by_labels(name: str, seed: int) -> Updates:
    means = class_means(seed)
    return noised([update_of(shares, means) for shares in LABELS[name](seed)], NOISE, seed)


@pytest.mark.parametrize("by_direction", [False, True])
@pytest.mark.parametrize("name", LABELS)
def test_different_labels_alone_are_no_clusters(name: str, by_direction: bool) -> None:
    for seed in range(2):
        _, claimed = claim_of(by_labels(name, seed), by_direction=by_direction)
        assert not claimed.separated
        assert claimed.claim in (LABEL_SKEW, ONE)


def test_the_map_alone_would_call_labels_clusters() -> None:
    """The case that the claim is for: two profiles of labels separate as well as groups do."""
    found, claimed = claim_of(by_labels("two profiles", 0))
    assert found.separated
    assert found.mss > 10
    assert claimed.claim == LABEL_SKEW
    np.testing.assert_array_equal(claimed.assignment, found.assignment)


@pytest.mark.parametrize("by_direction", [False, True])
@pytest.mark.parametrize("name", GROUPS)
def test_groups_that_differ_by_more_are_found_all_the_same(name: str, by_direction: bool) -> None:
    """Their labels differ a little, too: each client's shares are of 300 records."""
    means_of, truth = GROUPS[name]
    for seed in range(2):
        generator = np.random.default_rng([seed, 5])
        rows = [
            update_of(generator.multinomial(300, EVEN) / 300, means)
            for means in means_of(truth.tolist(), seed)
        ]
        _, claimed = claim_of(noised(rows, NOISE, seed), by_direction=by_direction)
        assert claimed.claim == SEVERAL
        assert claimed.separated
        assert are(claimed, truth)


def test_without_a_head_labels_are_not_looked_at_and_the_claim_says_so() -> None:
    _, claimed = claim_of(by_labels("two profiles", 0), head=None)
    assert claimed.claim == UNCHECKED


def cloud(seed: int, clients: int, axes: int) -> npt.NDArray[np.float64]:
    """Return points of one normal cluster, five times as wide as the clients' noise."""
    return 5 * np.random.default_rng([seed, 6]).standard_normal((clients, axes))


def test_one_cloud_is_seldom_called_several_and_the_maps_separation_calls_it_often() -> None:
    """An honest test passes 1 cloud in 100; false alarm of this one 1e-6.

    The mixture's own word passes 1 in 6 of these: that must be rejected.
    """
    clouds, models, noise = 40, 2, np.ones((6, 1))
    several = separate = 0
    for seed in range(clouds):
        points = cloud(seed, 6, 1)
        several += not is_one_cluster(points, noise, models)
        separate += fit_clusters(points, noise, models, True).separated
    allowed = int(stats.binom.isf(1e-6, clouds, 1 / 100))
    assert several <= allowed < separate


def means_of(weights: npt.NDArray[np.float64], biases: npt.NDArray[np.float64]) -> HeadMeans:
    both = np.stack([weights, np.zeros_like(weights)])
    return HeadMeans(
        both, both.mean(axis=0), np.stack([biases, np.zeros_like(biases)]), np.full(2, 1e-12)
    )


@pytest.mark.parametrize(("stretch", "explained"), [(0.5, True), (0.99, True), (1.01, False)])
def test_labels_move_weights_by_the_inputs_root_at_most(stretch: float, explained: bool) -> None:
    """Two classes move along one direction alone: their length decides."""
    biases = np.array([1.0, -1.0])
    feature = stretch * np.ones(INPUTS)
    found = explained_pairs(means_of(np.outer(biases, feature), biases))
    assert found.tolist() == [[False, explained], [explained, False]]
