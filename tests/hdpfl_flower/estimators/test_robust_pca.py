"""Robust PCA: the fused sweep against the textbook's iteration, float64 and full SVD.

The reference is written from Lin, Chen and Ma (arXiv 1009.5055, algorithm 5) and shares no code
with the package: it stores L, S and Y, and takes singular values from the matrix itself.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from threadpoolctl import threadpool_limits

from hdpfl_flower.estimators.robust_pca import robust_pca, sampled_rpca
from hdpfl_flower.linalg.types import Matrix


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threadpool_limits(1):  # more would spin between products this small
        yield


def reference(updates: npt.NDArray[np.float32]) -> Matrix:
    """Return the mean square of each row of S, converged to ‖M − L − S‖ ≤ 1e-7·‖M‖."""
    m = updates.astype(np.float64)
    lam, spectral = 1 / math.sqrt(max(m.shape)), np.linalg.norm(m, 2)
    y, s, mu = m / max(spectral, np.abs(m).max() / lam), np.zeros_like(m), 1.25 / spectral
    for _ in range(200):
        u, values, v = np.linalg.svd(m - s + y / mu, full_matrices=False)
        low_rank = (u * np.maximum(values - 1 / mu, 0)) @ v
        t = m - low_rank + y / mu
        s = np.sign(t) * np.maximum(np.abs(t) - lam / mu, 0)
        rest = m - low_rank - s
        y, mu = y + mu * rest, 1.5 * mu
        if np.linalg.norm(rest) <= 1e-7 * np.linalg.norm(m):
            return np.square(s).mean(axis=1)
    raise RuntimeError("the reference did not converge")


def drawn(
    kind: str, n: int = 20, d: int = 3_000, seed: int = 1
) -> tuple[npt.NDArray[np.float32], Matrix]:
    generator = np.random.default_rng(seed)
    variances = 10 ** generator.uniform(-3, 0, n)
    shared = generator.standard_normal((4, d))
    signal = {
        "weak": 0.01 * shared[[0] * n],
        "strong": shared[[0] * n],
        "clusters": shared[np.arange(n) % 4],
        "sparse": shared[[0] * n] + (generator.random((n, d)) < 0.01) * 1.0,
    }[kind]
    noise = np.sqrt(variances)[:, None] * generator.standard_normal((n, d))
    return (signal + noise).astype(np.float32), variances


def weights(variances: Matrix) -> Matrix:
    precision = variances.min() / variances
    return precision / precision.sum()


def distance(one: Matrix, other: Matrix) -> float:
    return float(np.abs(weights(one) - weights(other)).max())


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("kind", ["weak", "strong", "clusters", "sparse"])
def test_the_weights_are_those_of_the_converged_reference(kind: str, seed: int) -> None:
    updates, _ = drawn(kind, seed=seed)
    assert distance(robust_pca(updates).variances, reference(updates)) <= 1e-3


@pytest.mark.parametrize(("n", "d"), [(2, 300), (4, 29), (13, 650), (30, 20)])
def test_run_to_its_end_it_is_the_reference_for_any_shape(n: int, d: int) -> None:
    """float32 keeps T to 6e-8 of the largest entry; 1e-3 of a mean square leaves it room."""
    updates, _ = drawn("strong", n, d)
    found = robust_pca(updates, max_sweeps=60, weights_tolerance=0, residual_tolerance=1e-5)
    assert found.residual < 1e-5
    exact = reference(updates)
    np.testing.assert_allclose(found.variances, exact, rtol=1e-2, atol=1e-3 * exact.max())
    assert distance(found.variances, exact) <= 2e-3


def test_it_takes_less_than_one_and_a_half_matrices_and_leaves_the_updates() -> None:
    updates, _ = drawn("strong", 20, 200_000)
    before = updates.copy()
    tracemalloc.start()
    robust_pca(updates, max_sweeps=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(updates, before)
    assert peak <= 1.5 * updates.nbytes


def test_a_sample_stands_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 4,000 of 16,000 coordinates a variance has √(2/4,000) = 2 % error; five times that."""
    monkeypatch.setattr("hdpfl_flower.estimators.robust_pca.SAMPLE", 4_000)
    updates, _ = drawn("weak", 10, 16_300)
    whole, sample = robust_pca(updates).variances, sampled_rpca(updates).variances
    assert np.any(sample != whole)
    # λ follows the sample's size, which moves the level but hardly the ratios
    np.testing.assert_allclose(sample / sample.mean(), whole / whole.mean(), rtol=0.12)
