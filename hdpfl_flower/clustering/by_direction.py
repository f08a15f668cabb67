"""Clusters of clients by the direction of their updates.

A client with ten times the steps sends an update ten times as long. Maps that compare the
updates themselves (``clusters.py``, ``noise_mixture.py``) then find clusters of equal length,
unless all clients take one step on all of their records. Groups with different data differ in
direction:

* The picture is the weighted PCA of ``noise_mixture.py`` about the origin: the top M directions of
  the uᵢ/σᵢ. The common part of all clients is one of them.
* Each client's point is moved onto the unit sphere, and its noise is divided by its distance from
  the origin: a client hidden in noise may point anywhere.
* The mixture is that of ``noise_mixture.py``, each client with the variance of its own direction.

Sattler, Müller and Samek (Clustered Federated Learning, IEEE TNNLS 2021) separate clients by the
cosines of their updates, which noise drives to 0; the picture and the variances are new here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hdpfl_flower.clustering.clusters import Clusters, candidate_models
from hdpfl_flower.clustering.noise_mixture import fit_clusters, noise_of, weighted_picture
from hdpfl_flower.estimators.factor_analysis import noise_edge
from hdpfl_flower.linalg.sums import inner_products
from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix, Updates, Vector

_ANYWHERE, _HIDDEN = 0.1, 100.0
"""Bounds of a hidden client: variance on the sphere, multiple of the median.

A variance of .1 is ± .3 radians. A hidden client may point anywhere; others need not wait for it.
"""
_CERTAIN = 1e-6
"""Expected misplaced clients below which clusters count as equally certain."""


def cluster_by_direction(
    updates: Updates, models: int = 0, variances: Vector | None = None
) -> Clusters:
    """Return the clusters of the updates' directions.

    Args:
        updates: noisy updates from one common model, or sums of them, float32, shape ``(n, d)``.
        models: M; 0: the number from 2 to 10 with the most certain clusters.
        variances: σᵢ² per coordinate, positive, shape ``(n,)``; None: found by factor analysis.

    Guarantees:
        At most four passes over the updates. The same updates in the same order return the same
        clusters, and an update times a positive number, with its variance times the square of it,
        lies in the same cluster. ``above_noise`` is False where fewer than M − 1 directions are
        stronger than the largest of pure noise is once in a thousand times (not M: two opposite
        groups have no common part, and show one direction). If only one is, the others are
        left out: next to the common part noise would make two clusters.

    Raises:
        StrategyError: as :func:`~hdpfl_flower.clustering.noise_mixture.cluster_by_noise`.
    """
    candidates = candidate_models(len(updates), models)
    variances = noise_of(updates, variances)
    gram, d = inner_products(updates), updates.shape[1]
    with one_thread():
        positions, scales, strengths = weighted_picture(gram, d, variances, centred=False)
        # The updates are divided by σᵢ here, so noise alone has eigenvalues near d.
        seen = int(np.count_nonzero(strengths > d * noise_edge(len(gram), d)))
        fits, doubts = [], []
        for count in candidates:
            axes = count if seen > 1 else 1
            points, noise = on_sphere(positions[:, :axes], variances[:, None] * scales[:axes])
            fits.append(fit_clusters(points, noise, count, seen >= count - 1))
            # Radians² on the unit sphere. A client hidden by noise is in doubt in every candidate,
            # which would only blur the choice.
            spread = noise.mean(axis=1)
            shown = spread < max(_ANYWHERE, _HIDDEN * float(np.median(spread)))
            doubts.append(float((1 - fits[-1].confidence)[shown].sum()))
    return select_most_certain(fits, doubts)


def select_most_certain(fits: Sequence[Clusters], doubts: Sequence[float]) -> Clusters:
    """Return the clusters with the least doubt; on ties the finest.

    If two groups are taken for one, or one for two, some clients lie between. Fits with a
    cluster of one client or none do not count, unless all have one.

    Args:
        fits: clusters of the same clients.
        doubts: for each fit the expected number of misplaced clients, without those that noise
            lets point anywhere: these are in doubt in all.
    """
    both = list(zip(fits, doubts, strict=True))
    whole = [(clusters, doubt) for clusters, doubt in both if clusters.sizes.min() > 1] or both
    # Doubts below _CERTAIN are equal: then the finest clusters win.
    return min(whole, key=lambda fit: (max(fit[1], _CERTAIN), -len(fit[0].sizes)))[0]


def on_sphere(positions: Matrix, noise: Matrix) -> tuple[Matrix, Matrix]:
    """Return the points scaled to the unit sphere, and their noise.

    Args:
        positions: shape ``(n, k)``.
        noise: variance along each direction, shape ``(n, k)``.

    >>> points, noise = on_sphere(np.array([[3.0, 4.0]]), np.array([[5.0, 5.0]]))
    >>> points, noise
    (array([[0.6, 0.8]]), array([[0.2, 0.2]]))
    """
    # The floor stops 0/0 for a point at the origin; its noise is huge there.
    square = np.maximum(np.square(positions).sum(axis=1, keepdims=True), 1e-300)
    return positions / np.sqrt(square), noise / square
