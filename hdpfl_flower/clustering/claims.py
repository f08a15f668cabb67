"""Claims allowed by separated clusters: clusters, labels or chance.

Any cloud of points can be cut, and sites that differ only by their labels also fall into clusters.
Before clusters are trusted

1. those explained by label proportions are joined (``label_skew.py``); if one is left: label skew;
2. one cluster, with a width of its own and the clients' own noise, must not explain the points as
   well (``one_cluster.py``): for clients of one cluster, 1 test in 100 passes.

If the head of the network is not known (a regression, a user's own network) the first cannot be
tested, and the claim states it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hdpfl_flower.clustering.clusters import LABEL_SKEW, ONE, SEVERAL, UNCHECKED, Clusters
from hdpfl_flower.clustering.label_skew import explained_pairs, head_means, joined
from hdpfl_flower.clustering.noise_mixture import weighted_picture
from hdpfl_flower.clustering.one_cluster import is_one_cluster
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.sums import inner_products
from hdpfl_flower.linalg.types import Updates, Vector


def judged(
    clusters: Clusters,
    updates: Updates,
    variances: Vector,
    head: Head | None = None,
    by_direction: bool = False,
) -> Clusters:
    """Return the clusters with the claim that they allow.

    Args:
        clusters: of ``updates`` by any map.
        updates: float32, shape ``(n, d)``.
        variances: σᵢ² per coordinate, positive, shape ``(n,)``.
        head: position of the softmax layer; None: not known.
        by_direction: the map compared directions: every update counts at length 1.

    Guarantees:
        Untrusted clusters are returned unchanged, with a claim that states the reason.
        If label proportions explain some clusters, the remaining ones are returned.
    """
    if not clusters.separated:
        return replace(clusters, claim=ONE)
    gram, d = inner_products(updates), updates.shape[1]
    factors = np.ones(len(gram))
    if by_direction:
        # E‖uᵢ‖² = ‖signal‖² + d·σᵢ². The floor keeps an update shorter than its noise finite.
        signal = np.diag(gram) - d * variances
        factors = 1 / np.sqrt(np.maximum(signal, 1e-6 * np.diag(gram)))
    exact = variances * factors**2
    claim = UNCHECKED
    if head is not None:
        means = head_means(updates, head, clusters.assignment, exact, factors)
        left = joined(clusters, explained_pairs(means))
        if len(left.sizes) == 1:
            return replace(clusters, claim=LABEL_SKEW)
        clusters, claim = left, SEVERAL
    # The centres of M clusters differ in M − 1 directions; only these enter the test.
    axes = len(clusters.sizes) - 1
    points, scales, _ = weighted_picture(gram * np.outer(factors, factors), d, exact)
    is_single = is_one_cluster(points[:, :axes], exact[:, None] * scales[:axes], axes + 1)
    return replace(clusters, claim=ONE if is_single else claim)
