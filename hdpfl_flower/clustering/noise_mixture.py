"""Clusters of clients with unequal noise, weighted by precision.

R-DPCFL's map (``clusters.py``) treats all clients as equally noisy. Here, with σᵢ² the noise of
client i's update per coordinate:

* The picture is a weighted PCA: the top M − 1 directions of the updates less their weighted mean,
  weights 1/σᵢ², so that every client's noise has the same weight in the choice of directions. It is
  computed from the n × n Gram matrix alone.
* The mixture has M spherical normals with equal priors, where client i's point has the variance
  σᵢ²·cₖ + τ² along direction k. τ² is the variance within a cluster beyond noise. It is
  found with the means by expectation–maximisation from 10 starts. A noisy client moves the means
  little and cannot make a narrow cluster of its own. This is extreme deconvolution (Bovy, Hogg and
  Roweis, Annals of Applied Statistics 2011) with one shared, spherical τ².

Dividing the updates by σᵢ instead would move the centres of the clusters: it is not whitening.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdpfl_flower.clustering.clusters import (
    STARTS,
    Clusters,
    candidate_models,
    fix_signs,
    separations_of,
)
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.factor_analysis import noise_edge
from hdpfl_flower.estimators.noise_level import estimate_noise_levels
from hdpfl_flower.linalg.sums import inner_products
from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix, Updates, Vector

_NEARLY = 0.8
"""Share of the largest MSS that counts as equal: docs/results/clusters.md."""
_ITERATIONS = 500
_TOLERANCE = 1e-8
"""Rise of mean log-likelihood below which the fit stops, for all starts."""


def cluster_by_noise(
    updates: Updates, models: int = 0, variances: Vector | None = None
) -> Clusters:
    """Return clusters by weighted PCA and a noise-aware mixture.

    Args:
        updates: noisy updates from one common model, float32, shape ``(n, d)``.
        models: M; 0: from 2 to 10 the largest number with nearly the largest MSS, see
            :func:`select_finest_separated`.
        variances: σᵢ² per coordinate, positive, shape ``(n,)``; None: found by factor analysis.

    Guarantees:
        At most four passes over the updates, for any number of candidates. The same updates in the
        same order return the same clusters. ``above_noise`` is False where one of the M − 1
        directions is no stronger than the largest of pure noise is once in a thousand times.

    Raises:
        StrategyError: fewer than 2 clients, M not between 2 and their number, or
            variances that are not positive.
    """
    candidates = candidate_models(len(updates), models)
    variances = noise_of(updates, variances)
    gram, d = inner_products(updates), updates.shape[1]
    return cluster_gram(gram, d, variances, candidates)


def noise_of(updates: Updates, variances: Vector | None) -> Vector:
    """Return the given variances, or those from factor analysis.

    Raises:
        StrategyError: they are not positive, or not one per client.
    """
    if variances is None:
        variances = estimate_noise_levels(updates, copies=False)
    if variances.shape != (len(updates),) or not np.all(np.isfinite(variances) & (variances > 0)):
        raise StrategyError("the noise of every client must be a positive number")
    return variances


def cluster_gram(
    gram: Matrix, dimension: int, variances: Vector, candidates: Sequence[int]
) -> Clusters:
    """Return :func:`cluster_by_noise` from the updates' inner products.

    Args:
        gram: uᵢ·uⱼ, shape ``(n, n)``.
        dimension: d.
        variances: σᵢ² per coordinate, shape ``(n,)``.
        candidates: the numbers of clusters to try.
    """
    with one_thread():
        positions, scales, strengths = weighted_picture(gram, dimension, variances)
        edge = dimension * noise_edge(len(gram), dimension)
        fits = []
        for models in candidates:
            axes = models - 1
            noise = variances[:, None] * scales[:axes]
            above = bool(np.all(strengths[:axes] > edge))
            fits.append(fit_clusters(positions[:, :axes], noise, models, above))
    return select_finest_separated(fits)


def fit_clusters(positions: Matrix, noise: Matrix, models: int, above_noise: bool) -> Clusters:
    """Return the clusters of :func:`fit_mixture`."""
    shares, means, widths = fit_mixture(positions, noise, models)
    return Clusters(shares, positions, separations_of(means, widths), above_noise)


def select_finest_separated(fits: Sequence[Clusters]) -> Clusters:
    """Return the most clusters with MSS at least .8 of the largest.

    MSS is the least gap, and fewer clusters have fewer gaps: if two groups lie closest
    to each other, the largest MSS is often that of the fit that merges them. Fits with a cluster of
    one client or none do not count, unless all have one.
    """
    whole = [clusters for clusters in fits if clusters.sizes.min() > 1] or fits
    enough = _NEARLY * max(clusters.mss for clusters in whole)
    return max(
        (clusters for clusters in whole if clusters.mss >= enough),
        key=lambda clusters: len(clusters.sizes),
    )


def weighted_picture(
    gram: Matrix, dimension: int, variances: Vector, centred: bool = True
) -> tuple[Matrix, Vector, Vector]:
    """Return the clients' points in the weighted PCA, strongest direction first.

    With A the inner products of the (uᵢ − ū)/σᵢ and A a = λ a, client i lies at σᵢ·√λ·aᵢ. Noise
    alone adds d to every eigenvalue: a client's own noise lies partly along a direction
    chosen with it. So the points are shrunk by √((λ − d)/λ), the size of the signal, and
    their noise is σᵢ²·c with c = λ/(λ − d).

    Args:
        gram: uᵢ·uⱼ, shape ``(n, n)``.
        dimension: d.
        variances: σᵢ², shape ``(n,)``.
        centred: False: about the origin, ū = 0.

    Returns:
        Points, shape ``(n, k)``, k = n − 1, or n about the origin; c, shape ``(k,)``, at most 1e6;
        λ, likewise.
    """
    n = len(gram)
    roots = np.sqrt(variances)
    if centred:
        weights = (1 / variances) / np.sum(1 / variances)
        # I − 1wᵀ: it subtracts the weighted mean from every update, within the Gram matrix.
        centring = np.eye(n) - weights
        gram = centring @ gram @ centring.T
    whitened = gram / np.outer(roots, roots)
    # eigh reads one triangle alone; the mean with the transpose makes both the same.
    values, vectors = np.linalg.eigh((whitened + whitened.T) / 2)
    # Centred updates span n − 1 dimensions: the last eigenvalue is 0 but for rounding.
    axes = n - 1 if centred else n
    values, vectors = values[::-1][:axes], fix_signs(vectors[:, ::-1][:, :axes])
    # E[λ] of pure noise is d: the excess is signal.
    signal = np.maximum(values - dimension, 1e-6 * np.maximum(values, 1e-300))
    # σᵢ·√λ·aᵢ·√((λ − d)/λ) = σᵢ·√(λ − d)·aᵢ.
    return roots[:, None] * vectors * np.sqrt(signal), values.clip(1e-300) / signal, values


def fit_mixture(positions: Matrix, noise: Matrix, models: int) -> tuple[Matrix, Matrix, Vector]:
    """Return (shares (n, M), means (M, k), widths (M,)) of the likeliest fit.

    The width of a cluster is the standard deviation relevant for its mean: the harmonic mean of
    its clients' variances, so that one noisy member does not widen a cluster of exact ones.

    Args:
        positions: shape ``(n, k)``.
        noise: variance of each client along each direction, positive, shape ``(n, k)``.
        models: M.
    """
    # Start with a quarter of the spread between clusters as the variance inside of them.
    tau = np.full(STARTS, float(positions.var()) / 4)
    fit = climb(positions, noise, starts_of(positions, noise, models), tau)
    best = int(np.argmax(fit.likelihood))
    shares, variance = fit.shares[best], noise + fit.tau[best]
    # Σπ / Σ(π/v) over the members, with the precision 1/v averaged over the k directions.
    counted, weighed = shares.sum(axis=0), shares.T @ (1 / variance).mean(axis=1)
    widths = np.sqrt(np.maximum(counted, 1e-300) / np.maximum(weighed, 1e-300))
    return shares, fit.means[best], widths


@dataclass(frozen=True)
class Fits:
    """Fits of a mixture from s starts.

    Attributes:
        likelihood: mean log-likelihood of a client, less that of the priors and less
            k·log(2π)/2, shape ``(s,)``.
        shares: each client's probability of each cluster, shape ``(s, n, M)``.
        means: shape ``(s, M, k)``.
        tau: τ², shape ``(s,)``.
    """

    likelihood: Vector
    shares: Matrix
    means: Matrix
    tau: Vector


def climb(
    positions: Matrix, noise: Matrix, means: Matrix, tau: Vector, iterations: int = _ITERATIONS
) -> Fits:
    """Return the fits by expectation–maximisation from each start.

    Args:
        positions: shape ``(n, k)``, or ``(s, n, k)``: one set per start.
        noise: variance of each client along each direction, positive, shape ``(n, k)``.
        means: to start from, shape ``(s, M, k)``.
        tau: τ² to start from, shape ``(s,)``.
        iterations: maximum number.
    """
    # Axes: start, client or model, direction.
    likelihood = np.full(len(means), -np.inf)
    floor = 1e-9 * float(noise.min())
    for _ in range(iterations):
        used, variance = tau, noise + tau[:, None, None]
        exact = 1 / variance
        turned = means.transpose(0, 2, 1)
        # E-step: log N(xᵢ; μₖ, σᵢ²c + τ²), from which the constant is left out.
        scores = (exact * positions) @ turned - 0.5 * (exact @ turned**2)
        scores -= 0.5 * (exact * positions**2).sum(axis=2, keepdims=True)
        # log Σ exp less the largest exponent: no overflow, and the sum is at least 1.
        highest = scores.max(axis=2, keepdims=True)
        raised = np.exp(scores - highest)
        total = raised.sum(axis=2, keepdims=True)
        shares = raised / total
        normal = -0.5 * np.log(variance).sum(axis=2)
        now = (np.log(total[..., 0]) + highest[..., 0] + normal).mean(axis=1)
        if np.all(now - likelihood < _TOLERANCE):
            break
        likelihood = now
        # τ² as the remaining gaps after subtracting the noise, cluster by cluster.
        left = positions**2 - 2 * positions * (shares @ means) + shares @ means**2
        # M-step of τ²: the posterior mean square of the deviation beyond noise,
        # E[b²] = τ²σ²/(τ² + σ²) + (τ²/(τ² + σ²))²·(x − μ)².
        share = tau[:, None, None] / variance
        tau = np.maximum((share * (noise + share * left)).mean(axis=(1, 2)), floor)
        # M-step of the means: each client counts by its precision.
        members = shares.transpose(0, 2, 1)
        precision, pull = members @ exact, members @ (exact * positions)
        # A cluster without members does not move.
        means = np.where(precision > 0, pull / np.where(precision > 0, precision, 1), means)
    return Fits(likelihood, shares, means, used)


def starts_of(positions: Matrix, noise: Matrix, models: int, starts: int = STARTS) -> Matrix:
    """Return start means ``(starts, M, k)``: clients far apart for their noise.

    As k-means++ does, each next client is drawn in proportion to its squared distance, here in
    units of its own noise, to the nearest one drawn.
    """
    generator = np.random.default_rng(0)
    means = np.empty((starts, models, positions.shape[1]))
    # The first client is drawn by its precision: an exact one marks a cluster better.
    exactness = 1 / noise.mean(axis=1)
    for start in range(starts):
        chances, nearest = exactness / exactness.sum(), np.full(len(positions), np.inf)
        for model in range(models):
            drawn = positions[generator.choice(len(positions), p=chances)]
            means[start, model] = drawn
            nearest = np.minimum(nearest, ((positions - drawn) ** 2 / noise).sum(axis=1))
            whole = nearest.sum()
            # A sum of 0 means that every client lies on a drawn one: then all are equally likely.
            chances = nearest / whole if whole > 0 else np.full(len(positions), 1 / len(positions))
    return means
