"""Test of whether label proportions explain two clusters' distance.

The test reads the head's updates.

Clients that differ only by their labels, in P(y) and not in P(x | y), send the same directions of
the classes in other proportions. To first order the rows of a softmax head are then

    Δ_c ≈ δ_c·μ_c − p_c·Σ δ_y·μ_y,    and the biases the same with 1 in place of μ,

with δ the difference in proportions and μ_c the mean features of class c. Between two clusters that
differ only by their labels

* the biases differ;
* the weights differ by at most √inputs times as much, where features have a mean square of at most
  1, as pixels within [0, 1] and standardised columns have: the gradient of a row's weights is the
  features times that of its bias;
* row for row the weights move as the biases do: along one direction m common to all classes, and
  along the class's own row of the clients' mean update.

Clusters with other inputs (rotations), or other meanings of the labels, move their weights
much farther, and not along the biases: on MNIST at most 3 to 38 % lie along those directions, where
labels alone have 70 to 100 %. Two classes always move along one direction; then the length
decides. Clusters explained by labels are joined; if one is left, the claim is label skew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.clustering.clusters import Clusters
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix, Updates, Vector

ALONG = 0.5
"""Share of distance² along the biases from which labels explain it: docs/results/clusters.md."""
CHANCE = 0.05
"""False positive rate of the test for differing biases."""

_BLOCK = 16_384


@dataclass(frozen=True)
class HeadMeans:
    """Head part of the clusters' mean updates.

    Attributes:
        weights: shape ``(M, classes, inputs)``; ``(classes, inputs)`` of the mean over all.
        common: that mean.
        biases: shape ``(M, classes)``.
        variances: noise of a mean per coordinate, shape ``(M,)``.
    """

    weights: Matrix
    common: Matrix
    biases: Matrix
    variances: Vector


def head_means(
    updates: Updates,
    head: Head,
    assignment: npt.NDArray[np.int64],
    variances: Vector,
    factors: Vector,
) -> HeadMeans:
    """Return the clusters' precision-weighted means in one pass over the head.

    Args:
        updates: float32, shape ``(n, d)``.
        head: position of the softmax layer.
        assignment: the cluster of each client, shape ``(n,)``; none is empty.
        variances: σᵢ² per coordinate of the updates times ``factors``, shape ``(n,)``.
        factors: factor of each update, shape ``(n,)``.
    """
    # 1/σᵢ² in the client's own cluster, else 0: shape (M, n).
    exact = (assignment == np.unique(assignment)[:, None]) / variances
    totals = exact.sum(axis=1)
    shares = exact / totals[:, None] * factors
    size = head.classes * (head.inputs + 1)
    rows = np.empty((len(totals), size))
    with one_thread():
        for start in range(0, size, _BLOCK):
            stop = min(start + _BLOCK, size)
            block = updates[:, head.start + start : head.start + stop].astype(np.float64)
            rows[:, start:stop] = shares @ block
    weights = rows[:, : head.classes * head.inputs].reshape(-1, head.classes, head.inputs)
    common = np.tensordot(totals / totals.sum(), weights, 1)
    return HeadMeans(weights, common, rows[:, head.classes * head.inputs :], 1 / totals)


def explained_pairs(means: HeadMeans) -> npt.NDArray[np.bool_]:
    """Return the cluster pairs explained by label proportions, shape ``(M, M)``.

    If they explain some pair, the sites do differ by their labels: then they count as the
    explanation of every other pair that the head does not rule out.
    """
    models = len(means.variances)
    explained, ruled_out = (np.zeros((models, models), dtype=np.bool_) for _ in range(2))
    for i in range(models):
        for j in range(i):
            explained[i, j], ruled_out[i, j] = _explains(
                means.weights[i] - means.weights[j],
                means.biases[i] - means.biases[j],
                means.common,
                float(means.variances[i] + means.variances[j]),
            )
    if explained.any():
        explained = np.tril(~ruled_out, -1)
    symmetric: npt.NDArray[np.bool_] = explained | explained.T
    return symmetric


def _explains(weights: Matrix, biases: Vector, common: Matrix, noise: float) -> tuple[bool, bool]:
    """Return whether labels explain a difference, and whether they cannot.

    Neither is true if the noise is too large.

    Args:
        weights: of the difference, shape ``(classes, inputs)``.
        biases: likewise, shape ``(classes,)``.
        common: the mean update's weights, shape ``(classes, inputs)``.
        noise: variance of every coordinate of the two differences.
    """
    from scipy.special import chdtri

    classes, inputs = weights.shape
    biases = biases - biases.mean()  # their sum has no signal
    square = float(biases @ biases)
    # ‖ΔW‖² less the mean contribution of noise.
    whole = float(np.square(weights).sum()) - classes * inputs * noise
    if whole > inputs * square:  # noise makes the biases' difference longer
        return False, True
    # For equal biases ‖Δb‖²/noise is χ² with classes − 1 degrees of freedom: subtract the mean.
    if whole <= 0 or square < float(chdtri(classes - 1, CHANCE)) * noise:
        return False, False
    # The share of ‖Δb‖² that is signal. A noisy direction shows less of the motion along it,
    # and the threshold falls by as much.
    reliable = 1 - (classes - 1) * noise / square
    unit = biases / np.sqrt(square)
    along = unit @ weights
    class_rows = unit[:, None] * common
    # Orthogonal to the part that `along` counts already, so that no part counts twice.
    class_rows -= np.outer(unit, unit @ class_rows)
    share = float((class_rows * weights).sum()) / max(
        float(np.sqrt(np.square(class_rows).sum())), 1e-300
    )
    # Label proportions cannot move against the class's own row: a move against it counts 0.
    moved = float(along @ along) - inputs * noise + max(share, 0.0) ** 2
    explains = moved >= ALONG * reliable * whole
    return explains, not explains


def joined(clusters: Clusters, pairs: npt.NDArray[np.bool_]) -> Clusters:
    """Return the clusters with those joined that ``pairs`` link, also through other clusters.

    A joined cluster's probability is the sum of its parts', and its separation from another one the
    least of theirs. Without a pair: ``clusters`` itself.
    """
    models = len(pairs)
    # One label for all clusters joined directly or through others.
    number = list(range(models))
    for i in range(models):
        for j in range(i):
            if pairs[i, j]:
                number = [number[j] if x == number[i] else x for x in number]
    labels = sorted(set(number))
    if len(labels) == models:
        return clusters
    into = np.array([labels.index(x) for x in number])
    member = np.equal(into[:, None], range(len(labels)))
    apart = np.full((len(labels), len(labels)), np.inf)
    for i in range(models):
        for j in range(models):
            if into[i] != into[j]:
                first, second = into[i], into[j]
                apart[first, second] = min(apart[first, second], clusters.separations[i, j])
    return Clusters(clusters.shares @ member, clusters.positions, apart, clusters.above_noise)
