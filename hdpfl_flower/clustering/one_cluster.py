"""Test of one cluster (M = 1) against several.

Any cloud can be cut into clusters. The null hypothesis is one cluster, in which the clients differ
by a normal distribution of its own width along every axis, and each by its own noise. The test is a
parametric bootstrap (McLachlan, On bootstrapping the likelihood ratio test statistic for the number
of components in a normal mixture, Applied Statistics 1987): clients are drawn from the fitted null
repeatedly, and the clusters count only if the mixture of M clusters gains more likelihood
on the clients than on every draw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.clustering.noise_mixture import climb, starts_of
from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix, Vector

DRAWS = 99
"""Draws from one cluster, none of which may gain as much.

For clients of one cluster, 1 test in 100 finds several.
"""

_STARTS, _ITERATIONS = 4, 60
_BATCHES = (9, DRAWS - 9)
"""Sizes of successive draws: the first few reject most single clusters."""


def is_one_cluster(positions: Matrix, noise: Matrix, models: int) -> bool:
    """Return whether one cluster explains the points as well as ``models``.

    Args:
        positions: shape ``(n, k)``.
        noise: variance of each client along each axis, positive, shape ``(n, k)``.
        models: M, at least 2.

    Guarantees:
        For points of one normal cluster with the clients' own noise: False for 1 set in 100, up to
        the error of the fitted width. The same points return the same answer.
    """
    generator = np.random.default_rng(0)
    with one_thread():
        mean, width = one_normal(positions, noise)
        reached = float(gains(positions[None], noise, models)[0])
        # The null's deviation of each client: its own noise and the common width.
        spread = np.sqrt(noise + width)
        for sets in _BATCHES:
            drawn = mean + spread * generator.standard_normal((sets, *positions.shape))
            # One draw with as much gain decides: rank 1 of DRAWS + 1 is then impossible.
            if np.any(gains(drawn, noise, models) >= reached):
                return True
    return False


def gains(positions: Matrix, noise: Matrix, models: int) -> Vector:
    """Return a mixture's log-likelihood gain over one normal, shape ``(r,)``.

    Args:
        positions: r sets of points, shape ``(r, n, k)``.
        noise: as in :func:`is_one_cluster`.
        models: M.
    """
    sets, n = positions.shape[:2]
    means = np.concatenate([starts_of(points, noise, models, _STARTS) for points in positions])
    # Each set once for each of its starts, in the order of `means`: (r·_STARTS, n, k).
    repeated = np.repeat(positions, _STARTS, axis=0)
    tau = repeated.var(axis=(1, 2)) / 4
    fits = climb(repeated, noise, means, tau, _ITERATIONS)
    # The sum over the clients, with equal priors 1/M. Both sides leave k·log(2π)/2 a client out.
    mixed = fits.likelihood.reshape(sets, _STARTS).max(axis=1) * n - n * np.log(models)
    mean, width = one_normal(positions, noise)
    variance = noise + width
    apart: npt.NDArray[np.float64] = (positions - mean) ** 2 / variance
    alone: Vector = -0.5 * (np.log(variance) + apart).sum(axis=(1, 2))
    gained: Vector = mixed - alone
    return gained


def one_normal(positions: Matrix, noise: Matrix) -> tuple[Matrix, Matrix]:
    """Return the likeliest mean and width² per axis, both (…, 1, k).

    Args:
        positions: shape ``(…, n, k)``.
        noise: shape ``(n, k)``.
    """
    width = positions.var(axis=-2, keepdims=True)
    floor = 1e-9 * noise.min()
    for _ in range(_ITERATIONS):
        exact = 1 / (noise + width)
        mean = (exact * positions).sum(axis=-2, keepdims=True) / exact.sum(axis=-2, keepdims=True)
        # A client's deviation from the mean has the posterior mean share·(x − μ) and variance
        # share·noise; the next width² is the mean of its square.
        share = width * exact
        left = share**2 * (positions - mean) ** 2 + share * noise
        width = np.maximum(left.mean(axis=-2, keepdims=True), floor)
    return mean, width
