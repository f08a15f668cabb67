"""Splittings with a start a client, against the scheme itself and against explicit recursions."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.splitting.scheme import FEDPI, FEDSPLIT, Scheme
from strategies.splitting.starts import Starts, next_starts, weights_of, with_shares

N, D, ETA = 7, 12, 0.5
SITES = [str(i) for i in range(N)]
SCHEMES = [FEDSPLIT, FEDPI, Scheme(1, 2, 1), Scheme(1.3, 0.6, 0.7), Scheme(0.5, 1.8, 1.2)]


class LeastSquares:
    """Clients with ½xᵀAᵢx − bᵢx, their exact proximal maps and the solution of their sum."""

    def __init__(self, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        turned = np.linalg.qr(generator.standard_normal((N, D, D)))[0]
        curves = generator.uniform(0.2, 2, (N, D, 1))
        self.a = turned @ (curves * turned.transpose(0, 2, 1))
        self.b = generator.standard_normal((N, D))
        self.weights = generator.dirichlet(np.full(N, 5.0))
        self.shares = dict(zip(SITES, 3 * self.weights, strict=True))

    def prox(self, u: np.ndarray) -> np.ndarray:
        """Return P(u), shape ``(n, d)``."""
        left, right = np.eye(D) + ETA * self.a, u + ETA * self.b
        return np.linalg.solve(left, right[..., None])[..., 0]

    @property
    def solution(self) -> np.ndarray:
        """The minimum of Σ wᵢfᵢ."""
        a, b = np.einsum("i,ijk->jk", self.weights, self.a), self.weights @ self.b
        return np.linalg.solve(a, b)


def duals_of(starts: Starts) -> np.ndarray:
    return np.array([starts.duals.get(site, np.zeros(D)) for site in SITES])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_with_all_present_it_is_the_scheme(scheme: Scheme) -> None:
    problem = LeastSquares()
    u, mean, starts = np.zeros((N, D)), np.zeros(D), Starts(problem.shares)
    for _ in range(20):
        prox = problem.prox(u)
        starts, move = next_starts(scheme, starts, SITES, prox - u)
        agreed, mean = mean + move.agreed, mean + move.mean
        u, expected = scheme.step(u, prox, problem.weights)
        np.testing.assert_allclose(mean + duals_of(starts), u, rtol=0, atol=1e-12)
        np.testing.assert_allclose(agreed, expected, rtol=0, atol=1e-12)


def rounds_of(
    scheme: Scheme, rounds: int, joins: int = 0
) -> tuple[LeastSquares, Starts, np.ndarray]:
    """Return the starts and P_H z after rounds of some of the clients."""
    problem, generator = LeastSquares(), np.random.default_rng(1)
    mean, starts, agreed = np.zeros(D), Starts(), np.zeros(D)
    for number in range(rounds):
        there = np.flatnonzero((generator.random(N) < 0.6) & (np.arange(N) < N - joins + number))
        if not len(there):
            continue
        sites, weights = [SITES[i] for i in there], problem.weights[there]
        u = mean + duals_of(starts)
        updates = (problem.prox(u) - u)[there]
        shares = with_shares(starts.shares, sites, weights / weights.sum())
        before = Starts(shares, starts.duals, starts.answers)
        kept = {site: dual.copy() for site, dual in starts.duals.items()}
        starts, move = next_starts(scheme, before, sites, updates)
        for site, dual in kept.items():
            np.testing.assert_array_equal(before.duals[site], dual)  # the last state stays
        mean, agreed = mean + move.mean, mean + move.agreed
        total = sum(share * starts.duals[site] for site, share in shares.items())
        np.testing.assert_allclose(total, 0, rtol=0, atol=1e-12)
    return problem, starts, agreed


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_duals_sum_to_nothing_whoever_is_absent_or_joins(scheme: Scheme) -> None:
    problem, starts, _ = rounds_of(scheme, 12, joins=3)
    found = weights_of(starts.shares, SITES)
    np.testing.assert_allclose(found, problem.weights, rtol=1e-12)
