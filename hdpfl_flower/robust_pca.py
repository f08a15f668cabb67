"""Principal component pursuit in one sweep an iteration, over updates that stay where they are.

min ‖L‖_* + λ‖S‖₁ subject to L + S = M (Candès, Li, Ma and Wright, Robust principal component
analysis?, J. ACM 2011) by the inexact augmented Lagrange multiplier method (Lin, Chen and Ma,
arXiv 1009.5055), with M = ``updates``, a client a row. The paper of Robust-HDP takes ‖Sᵢ‖² for a
client's noise.

With b = λ/μ, C = Y/μ and T = M − L + C its steps are: the new C is clip(T, ±b), S = T − C, and the
next matrix to threshold is X = M − S + C/ρ = M − T + (1 + 1/ρ)·clip(T, ±b). So T is all that is
kept besides M, in float32, and X and S are made a block at a time. X is n rows high: its singular
values come from the n × n matrix XXᵀ, and L = W X.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BLOCK = 8_192
_GROWTH = 1.5
"""ρ: Lin, Chen and Ma, section 5."""
_WEIGHTS_TOLERANCE = 5e-4
_SWEEPS = 12
_STEADIEST = 0.7
"""No slower convergence is extrapolated: ρ = 1.5 shrinks the error by 0.5 to 0.67 a sweep."""

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PrincipalComponentPursuit:
    """What the pursuit found.

    Attributes:
        variances: mean square of each row of S, shape ``(n,)``.
        sweeps: passes over the updates.
        residual: ‖M − L − S‖ / ‖M‖ of the last one.
    """

    variances: Vector
    sweeps: int
    residual: float


def robust_pca(
    updates: npt.NDArray[np.float32],
    *,
    max_sweeps: int = _SWEEPS,
    weights_tolerance: float = _WEIGHTS_TOLERANCE,
    residual_tolerance: float = 0.0,
) -> PrincipalComponentPursuit:
    """Return the sparse part's mean square of each row.

    The squares approach their limit geometrically, so that their limit is known sweeps before they
    reach it (Aitken's extrapolation, on their logarithms).

    Args:
        updates: float32, shape ``(n, d)``; no row of zeros. Not written to.
        max_sweeps: stop after so many.
        weights_tolerance: or when a sweep moves the extrapolated weights ∝ 1/‖Sᵢ‖² by less
            (Σ|Δw|).
        residual_tolerance: or when the residual falls below.
    """
    d = updates.shape[1]
    pursuit = _Pursuit(updates, 1 / math.sqrt(max(updates.shape)))
    history: list[Vector] = []
    limits: list[Vector] = []
    residual = math.inf
    while len(history) < max_sweeps and residual >= residual_tolerance:
        squares, residual = pursuit.sweep()
        history.append(np.log(np.maximum(squares, np.finfo(np.float32).tiny)))
        limits.append(_limit(history[-3:]))
        moved = [_moved(*limits[-2:])] if len(limits) > 3 else []
        if moved and moved[0] < weights_tolerance:
            break
    return PrincipalComponentPursuit(np.exp(limits[-1]) / d, len(history), residual)


def blockwise_rpca(
    updates: npt.NDArray[np.float32],
    block: int = 200_000,
    blocks: int = 1,
    generator: np.random.Generator | None = None,
) -> PrincipalComponentPursuit:
    """Return the mean over sub-matrices of p' coordinates, as the paper does for large models.

    Args:
        updates: float32, shape ``(n, d)``.
        block: p', coordinates in a sub-matrix; with no more than that, all are one.
        blocks: Q, how many sub-matrices, at most ⌊d/p'⌋. No coordinate is in two.
        generator: draws the coordinates; None: each sub-matrix takes every ⌊d/p'⌋-th, so that it
            sees all layers.
    """
    d = updates.shape[1]
    most = max(d // block, 1)
    if most == 1:
        return robust_pca(updates)
    if generator is None:
        chosen = [np.arange(start, most * block, most) for start in range(most)]
    else:
        drawn = generator.permutation(d)[: most * block]
        chosen = [np.sort(part) for part in np.array_split(drawn, most)]
    found = [robust_pca(np.take(updates, part, axis=1)) for part in chosen[: max(blocks, 1)]]
    variances: Vector = np.mean([part.variances for part in found], axis=0)
    return PrincipalComponentPursuit(
        variances, max(part.sweeps for part in found), max(part.residual for part in found)
    )


def _limit(logs: list[Vector]) -> Vector:
    """Return where the last of three vectors, a sweep apart, are heading."""
    if len(logs) < 3:
        return logs[-1]
    before, now = logs[1] - logs[0], logs[2] - logs[1]
    rate = np.clip(now / np.where(before == 0, 1, before), 0, _STEADIEST)
    limit: Vector = logs[2] + now * rate / (1 - rate)
    return limit


def _moved(one: Vector, other: Vector) -> float:
    """Return Σ|Δw| between the weights of two vectors of log variances."""
    return float(np.abs(_weights(one) - _weights(other)).sum())


def _weights(logs: Vector) -> Vector:
    precision: Vector = np.exp(logs.min() - logs)
    return precision / float(precision.sum())


class _Pursuit:
    """The iteration's state: T, μ and the Gram matrix of X."""

    def __init__(self, updates: npt.NDArray[np.float32], penalty: float) -> None:
        self._m, self._lambda = updates, penalty
        gram, largest = _start(updates)
        self._norm = math.sqrt(np.trace(gram))
        spectral = math.sqrt(np.linalg.eigvalsh(gram)[-1])
        # Y₀ = M / J(M) and μ₀ = 1.25 / ‖M‖₂: Lin, Chen and Ma, algorithm 5.
        self._mu = 1.25 / spectral
        self._kappa = 1 / (max(spectral, largest / penalty) * self._mu)
        self._gram = gram * (1 + self._kappa) ** 2
        self._t: npt.NDArray[np.float32] | None = None

    def sweep(self) -> tuple[Vector, float]:
        """Do one iteration and return ‖Sᵢ‖², shape ``(n,)``, and the relative residual."""
        m, n = self._m, len(self._m)
        low_rank = _shrinking(self._gram, 1 / self._mu).astype(np.float32)
        bound = self._lambda / self._mu
        # What T was clipped by a sweep ago, and X's share of it; μ has grown by ρ since.
        before, after = np.float32(bound * _GROWTH), np.float32(bound)
        gram, squares, gap = np.zeros((n, n)), np.zeros(n), 0.0
        first = self._t is None
        t = self._t = np.empty_like(m) if self._t is None else self._t
        for start in range(0, m.shape[1], _BLOCK):
            rows, old = m[:, start : start + _BLOCK], t[:, start : start + _BLOCK]
            if first:
                dual = rows * np.float32(self._kappa)
                x = rows + dual
            else:
                dual = np.clip(old, -before, before)
                x = rows - old
                x += dual
                dual *= np.float32(1 / _GROWTH)
                x += dual
            new = low_rank @ x
            np.subtract(rows, new, out=new)
            new += dual
            clipped = np.clip(new, -after, after)
            dual -= clipped
            gap += float(np.vdot(dual, dual))
            np.subtract(new, clipped, out=dual)  # S
            squares += np.einsum("ij,ij->i", dual, dual)
            np.subtract(rows, dual, out=x)
            clipped *= np.float32(1 / _GROWTH)
            x += clipped
            gram += x @ x.T
            old[...] = new
        self._gram, self._mu = gram, self._mu * _GROWTH
        return squares, math.sqrt(gap) / self._norm


def _start(updates: npt.NDArray[np.float32]) -> tuple[Matrix, float]:
    """Return MMᵀ and the largest entry of M."""
    gram, largest = np.zeros((len(updates), len(updates))), 0.0
    for start in range(0, updates.shape[1], _BLOCK):
        block = updates[:, start : start + _BLOCK]
        gram += block @ block.T
        largest = max(largest, float(block.max()), -float(block.min()))
    return gram, largest


def _shrinking(gram: Matrix, threshold: float) -> Matrix:
    """Return W with W X = X after its singular values fell by ``threshold``, from XXᵀ."""
    values, vectors = np.linalg.eigh(gram)
    singular = np.sqrt(np.maximum(values, 0))
    kept = np.zeros_like(singular)
    above = singular > threshold
    kept[above] = 1 - threshold / singular[above]
    shrinking: Matrix = (vectors * kept) @ vectors.T
    return shrinking
