"""Projection of noisy updates on the subspace of quieter ones.

Only the n × n Gram matrix is needed.

PFA runs Lanczos on a d × d matrix to find the directions of the public updates. Those directions
are combinations of the updates, so that their coefficients, and all projections on them, are
functions of the updates' inner products: one pass over the updates, an eigenproblem of the number
of public sites, and no d × k basis in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix

Subspace = Literal["span", "centred", "mean"]

_BLOCK = 16_384
_RANK_FLOOR = 1e-10
"""Share of squares below which a direction is rounding error."""


def project_private(
    gram: Matrix,
    weights: npt.NDArray[np.float64],
    public: npt.NDArray[np.bool_],
    rank: int,
    kind: Subspace,
) -> tuple[npt.NDArray[np.float64], int]:
    """Return the coefficients cᵢ of an aggregate Σ cᵢ·uᵢ whose private part is projected.

    The aggregate is Σ_public wᵢuᵢ + W·Π(x̄), where W is the private sites' weight, x̄ their weighted
    mean and Π the projection. Π(x̄) is a combination of the public updates.

    Args:
        gram: inner products of the updates, shape ``(n, n)``.
        weights: convex weights, shape ``(n,)``.
        public: which clients span the subspace, shape ``(n,)``.
        rank: k, the most directions that are kept.
        kind: ``span`` keeps the top k left singular vectors of the public updates. ``centred``
            keeps those of the public updates minus their plain mean, and Π(x) = mean + VVᵀ(x −
            mean); a single public site is not centred. ``mean`` keeps the direction of the weighted
            public mean, for any k.

    Returns:
        The coefficients, shape ``(n,)``, and the number of kept directions. If there is no public
        site, or no private weight, the coefficients are the weights and the number is 0.
    """
    private_weight = float(weights[~public].sum())
    if not public.any() or private_weight == 0:
        return weights.copy(), 0
    among = gram[np.ix_(public, public)]
    private_mean = gram[np.ix_(public, ~public)] @ weights[~public] / private_weight
    basis, centre = _directions(among, weights[public], rank, kind)
    # x̄ − centre in the coordinates of the basis; inner products suffice.
    coordinates = basis.T @ (private_mean - among @ centre)
    coefficients = np.zeros(len(weights))
    coefficients[public] = weights[public] + private_weight * (centre + basis @ coordinates)
    return coefficients, basis.shape[1]


def project_at_random(
    update: npt.NDArray[np.floating], rank: int, generator: np.random.Generator
) -> npt.NDArray[np.float32]:
    """Return ``update`` ``(d,)`` projected on min(rank, d) random directions.

    The directions are those of a Gaussian matrix D: Πx = D(DᵀD)⁻¹Dᵀx, and ‖Πx‖² has mean ‖x‖²·k/d.
    D is drawn a block of rows at a time, and drawn again for the second pass: as a whole it
    would be larger than the round's updates.
    """
    d, rank = len(update), min(rank, len(update))
    if rank == d:
        return update.astype(np.float32)
    seed, gram, products = int(generator.integers(2**63)), np.zeros((rank, rank)), np.zeros(rank)
    projected = np.empty(d, np.float32)
    with one_thread():
        for start, drawn in _drawn_blocks(seed, d, rank):
            gram += drawn.T @ drawn
            products += drawn.T @ update[start : start + len(drawn)].astype(np.float64)
        # (DᵀD)⁻¹Dᵀx; the second pass multiplies by D.
        coefficients = np.linalg.solve(gram, products)
        for start, drawn in _drawn_blocks(seed, d, rank):
            projected[start : start + len(drawn)] = drawn @ coefficients
    return projected


def _drawn_blocks(seed: int, d: int, rank: int) -> Iterator[tuple[int, Matrix]]:
    """Yield (first row, rows) of a Gaussian ``(d, rank)`` matrix by seed."""
    generator = np.random.default_rng(seed)
    rows = max(_BLOCK // rank, 1)
    for start in range(0, d, rows):
        yield start, generator.standard_normal((min(rows, d - start), rank))


def _directions(
    among: Matrix, weights: npt.NDArray[np.float64], rank: int, kind: Subspace
) -> tuple[Matrix, npt.NDArray[np.float64]]:
    """Return (B, c) in coefficients of the public updates R.

    R has a site per row. The orthonormal directions are the columns of RᵀB, shape of B ``(m, k)``;
    the centre is Rᵀc.
    """
    m, floor = len(among), _RANK_FLOOR * float(np.trace(among))
    origin = np.zeros(m)
    if kind == "mean":
        shares = weights if weights.any() else np.ones(m)
        squared = float(shares @ among @ shares) / float(shares.sum()) ** 2
        unit = shares[:, None] / (float(shares.sum()) * np.sqrt(max(squared, floor) or 1.0))
        return unit[:, : int(squared > floor)], origin
    centring, centre = np.eye(m), origin
    if kind == "centred" and m > 1:
        centring, centre = centring - 1 / m, np.full(m, 1 / m)
    values, vectors = np.linalg.eigh(centring @ among @ centring)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    # V = RᵀB has orthonormal columns: B = eigenvectors over the roots of their eigenvalues.
    strong = values > floor
    return centring @ vectors[:, strong] / np.sqrt(values[strong]), centre
