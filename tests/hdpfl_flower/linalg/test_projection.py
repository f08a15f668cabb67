"""Projections by inner products: the same as by Lanczos on the updates themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.sparse.linalg import LinearOperator, eigsh, svds

from hdpfl_flower.linalg.projection import project_at_random, project_private
from hdpfl_flower.linalg.sums import inner_products

FALSE_ALARM = 1e-6
"""Chance that one statistical check below rejects right code."""
EPS = np.finfo(np.float64).eps
D = 500
PUBLIC = np.array([True, False, True, True, False, False, True, False])
WEIGHTS = np.array([0.2, 0.05, 0.15, 0.25, 0.05, 0.1, 0.1, 0.1])
KINDS = ("span", "centred", "mean")


def rows_of(seed: int = 0, spread: float = 1.0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    scale = spread ** np.linspace(0, 1, len(WEIGHTS))
    rows = 0.5 * generator.standard_normal(D) + generator.standard_normal((len(WEIGHTS), D))
    return (scale[:, None] * rows).astype(np.float32)


def aggregate(rows: np.ndarray, rank: int, kind: str, public: np.ndarray = PUBLIC) -> np.ndarray:
    coefficients, _ = project_private(inner_products(rows), WEIGHTS, public, rank, kind)  # type: ignore[arg-type]
    result: np.ndarray = coefficients @ rows.astype(np.float64)
    return result


def by_lanczos(rows: np.ndarray, rank: int, kind: str) -> np.ndarray:
    """The papers' way: Lanczos over R^d, then VVᵀ on the private mean itself."""
    rows = rows.astype(np.float64)
    public, start = rows[PUBLIC], np.ones(D)
    centre = np.zeros(D)
    if kind == "mean":
        mean = WEIGHTS[PUBLIC] @ public / WEIGHTS[PUBLIC].sum()
        rank_one = LinearOperator((D, D), matvec=lambda x: mean * (mean @ x), dtype=np.float64)
        basis = eigsh(rank_one, 1, v0=start, tol=EPS)[1]
    else:
        centre = public.mean(axis=0) if kind == "centred" else centre
        basis = svds((public - centre).T, rank, v0=np.arange(1.0, 5), tol=EPS)[0]
    share = WEIGHTS[~PUBLIC].sum()
    private = WEIGHTS[~PUBLIC] @ rows[~PUBLIC] / share
    projected = centre + basis @ (basis.T @ (private - centre))
    result: np.ndarray = WEIGHTS[PUBLIC] @ public + share * projected
    return result


def check_same(ours: np.ndarray, other: np.ndarray, condition: float = 1.0) -> None:
    """Directions of a Gram matrix turn by d·eps·λ₁/gap at most, the gap that below λ_k.

    Ten times that leaves room for Lanczos; ``condition`` bounds λ₁/gap: 100 for the rows here.
    """
    assert np.linalg.norm(ours - other) < 10 * D * EPS * condition * np.linalg.norm(other)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_aggregate_is_that_of_lanczos(kind: str, rank: int) -> None:
    for seed in range(3):
        rows = rows_of(seed)
        check_same(aggregate(rows, rank, kind), by_lanczos(rows, rank, kind), 100)


def test_a_private_mean_in_the_span_is_kept_and_one_beside_it_is_lost() -> None:
    rows = rows_of().astype(np.float64)
    inside = np.random.default_rng(1).standard_normal((4, 4)) @ rows[PUBLIC]
    basis = np.linalg.svd(rows[PUBLIC].T, full_matrices=False)[0]
    beside = rows[~PUBLIC] - rows[~PUBLIC] @ basis @ basis.T
    for private, kept in ((inside, 1), (beside, 0)):
        rows[~PUBLIC] = private
        gram = rows @ rows.T
        coefficients, _ = project_private(gram, WEIGHTS, PUBLIC, 4, "span")
        expected = WEIGHTS[PUBLIC] @ rows[PUBLIC] + kept * (WEIGHTS[~PUBLIC] @ private)
        check_same(coefficients @ rows, expected, 1e4)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_one_direction(kind: str) -> None:
    rows = rows_of()
    rows[PUBLIC] = rows[0]
    gram = inner_products(rows)
    coefficients, kept = project_private(gram, WEIGHTS, PUBLIC, 3, kind)  # type: ignore[arg-type]
    assert np.isfinite(coefficients).all()
    assert kept == (0 if kind == "centred" else 1)  # less their mean, copies are nothing


@pytest.mark.parametrize("kind", KINDS)
def test_without_public_or_private_sites_nothing_is_projected(kind: str) -> None:
    gram = inner_products(rows_of())
    for public in (np.zeros(8, bool), np.ones(8, bool)):
        coefficients, kept = project_private(gram, WEIGHTS, public, 2, kind)  # type: ignore[arg-type]
        np.testing.assert_array_equal(coefficients, WEIGHTS)
        assert kept == 0


@pytest.mark.parametrize("size", [1, 16_383, 16_384, 16_385, 40_000])
def test_inner_products_are_those_of_whole_rows(size: int) -> None:
    rows = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    # A sum of d products, in any order, is off by d·eps·Σ|products| at most
    bound = size * EPS * (np.abs(rows).astype(np.float64) @ np.abs(rows).T)
    assert (np.abs(inner_products(rows) - exact) <= bound).all()


# Random directions.


def kept_shares(project: object, rank: int) -> np.ndarray:
    update = np.random.default_rng(9).standard_normal(60)
    draws = (project(update, rank, np.random.default_rng([rank, i])) for i in range(2_000))  # type: ignore[operator]
    return np.array([float(x @ x) for x in draws]) / float(update @ update)


def check_shares(shares: np.ndarray, rank: int) -> None:
    """‖Πx‖²/‖x‖² is Beta(k/2, (d − k)/2) for k uniform orthonormal directions."""
    assert stats.kstest(shares, "beta", (rank / 2, (60 - rank) / 2)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("rank", [1, 7])
def test_random_directions_are_uniform_and_orthonormal(rank: int) -> None:
    shares = kept_shares(project_at_random, rank)
    check_shares(shares, rank)
    for wrong in (2 / 3, 1.5):
        with pytest.raises(AssertionError):
            check_shares(wrong**2 * shares, rank)
