"""Principal component pursuit, one sweep per iteration without copies.

min ‖L‖_* + λ‖S‖₁ subject to L + S = M (Candès, Li, Ma and Wright, Robust principal component
analysis?, J. ACM 2011) by the inexact augmented Lagrange multiplier method (Lin, Chen and Ma,
arXiv 1009.5055), with M = ``updates``, a client per row. The paper of Robust-HDP takes ‖Sᵢ‖² for a
client's noise.

With b = λ/μ, C = Y/μ and T = M − L + C its steps are: the new C is clip(T, ±b), S = T − C, and the
next matrix to threshold is X = M − S + C/ρ = M − T + (1 + 1/ρ)·clip(T, ±b). So only T is
kept besides M, as float32, and X and S are made a block at a time. X has n rows: its singular
values come from the n × n matrix XXᵀ, and L = W X.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.types import Matrix, Vector

_BLOCK = 8_192
SAMPLE = 200_000
"""p', coordinates of a large model that are read."""
_GROWTH = 1.5
"""ρ: Lin, Chen and Ma, section 5."""
_WEIGHTS_TOLERANCE = 2e-4
_SWEEPS, _SMALL_SWEEPS, _SMALL = 12, 30, 50_000
"""Maximum sweeps, in general and below ``_SMALL`` coordinates.

In small problems the sparse part settles later, float32's rounding shows, and float64 is cheap.
"""
_VANISHED = 1e-9
"""Share of a row's squares below which its sparse part is absent."""
_STEADIEST = 0.7
"""Slowest convergence rate that is extrapolated.

ρ = 1.5 shrinks the error by 0.5 to 0.67 a sweep.
"""


@dataclass(frozen=True)
class PrincipalComponentPursuit:
    """Result of the pursuit.

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
    max_sweeps: int | None = None,
    weights_tolerance: float = _WEIGHTS_TOLERANCE,
    residual_tolerance: float = 0.0,
) -> PrincipalComponentPursuit:
    """Return the mean square of each row's sparse part.

    The squares approach their limit geometrically, so that their limit is known sweeps before they
    reach it (Aitken's extrapolation, on their logarithms).

    Args:
        updates: float32, shape ``(n, d)``; no row of zeros. Not written to.
        max_sweeps: stop after this number; None: 12, or 30 below 50,000 coordinates.
        weights_tolerance: or when a sweep moves the extrapolated weights ∝ 1/‖Sᵢ‖² by less
            (Σ|Δw|). A row with a vanished S has all the weight and hides the others: then no
            weight has settled.
        residual_tolerance: or when the residual falls below.

    Guarantees:
        Positive, finite values: a row with a vanished S at the end, as may happen with few
        coordinates, gets 1e-9 of its mean square.
    """
    d = updates.shape[1]
    most = max_sweeps or (_SMALL_SWEEPS if d < _SMALL else _SWEEPS)
    pursuit = _Pursuit(updates, 1 / math.sqrt(max(updates.shape)))
    history: list[Vector] = []
    limits: list[Vector] = []
    residual = math.inf
    least = np.maximum(_VANISHED * pursuit.row_squares, np.finfo(np.float32).tiny)
    floor: Vector = np.log(least)
    while len(history) < most and residual >= residual_tolerance:
        squares, residual = pursuit.sweep()
        history.append(np.log(np.maximum(squares, least)))
        limits.append(_limit(history[-3:], floor))
        there = len(limits) > 3 and bool(np.all(np.array(history[-4:]) > floor))
        if there and _moved(*limits[-2:]) < weights_tolerance:
            break
    return PrincipalComponentPursuit(np.exp(limits[-1]) / d, len(history), residual)


def sampled_rpca(updates: npt.NDArray[np.float32]) -> PrincipalComponentPursuit:
    """Return :func:`robust_pca`, from 400,000 coordinates on that of 200,000 across all layers.

    The paper, too, takes sub-matrices of a large model.
    """
    stride = updates.shape[1] // SAMPLE
    if stride < 2:
        return robust_pca(updates)
    return robust_pca(np.ascontiguousarray(updates[:, : stride * SAMPLE : stride]))


def _limit(logs: list[Vector], floor: Vector) -> Vector:
    """Return the extrapolated limit of three vectors a sweep apart; without one: the last.

    Only a first value above ``floor`` starts a geometric approach; from the floor it is a leap.
    """
    if len(logs) < 3:
        return logs[-1]
    before, now = logs[1] - logs[0], logs[2] - logs[1]
    rate = np.clip(now / np.where(before == 0, 1, before), 0, _STEADIEST)
    limit: Vector = np.where(logs[0] > floor, logs[2] + now * rate / (1 - rate), logs[2])
    return limit


def _moved(before: Vector, now: Vector) -> float:
    """Return Σ|Δw| between the weights of two log-variance vectors."""
    return float(np.abs(_weights(before) - _weights(now)).sum())


def _weights(logs: Vector) -> Vector:
    precision: Vector = np.exp(logs.min() - logs)
    return precision / float(precision.sum())


class _Pursuit:
    """State of the iteration: T, μ and the Gram matrix of X."""

    def __init__(self, updates: npt.NDArray[np.float32], penalty: float) -> None:
        self._float: type[np.float64 | np.float32] = (
            np.float64 if updates.shape[1] < _SMALL else np.float32
        )
        self._m: npt.NDArray[np.floating] = updates.astype(self._float, copy=False)
        self._lambda = penalty
        gram, largest = _start(self._m)
        self.row_squares: Vector = np.diag(gram).copy()
        self._norm = math.sqrt(np.trace(gram))
        spectral = math.sqrt(np.linalg.eigvalsh(gram)[-1])
        # Y₀ = M / J(M) and μ₀ = 1.25 / ‖M‖₂: Lin, Chen and Ma, algorithm 5.
        self._mu = 1.25 / spectral
        self._kappa = 1 / (max(spectral, largest / penalty) * self._mu)
        self._gram = gram * (1 + self._kappa) ** 2
        self._t: npt.NDArray[np.floating] | None = None

    def sweep(self) -> tuple[Vector, float]:
        """Run one iteration; return ‖Sᵢ‖², shape ``(n,)``, and relative residual."""
        m, n, real = self._m, len(self._m), self._float
        # L = D_{1/μ}(X): singular values of X shrunk by 1/μ, as a matrix that multiplies X.
        low_rank = _shrinking(self._gram, 1 / self._mu).astype(real)
        bound = self._lambda / self._mu
        # The last sweep's clipping bound of T, and X's share of it; μ has grown by ρ since.
        before, after = real(bound * _GROWTH), real(bound)
        gram, squares, gap = np.zeros((n, n)), np.zeros(n), 0.0
        first = self._t is None
        t = self._t = np.empty_like(m) if self._t is None else self._t
        for start in range(0, m.shape[1], _BLOCK):
            rows: npt.NDArray[Any] = m[:, start : start + _BLOCK]
            old = t[:, start : start + _BLOCK]
            if first:
                dual = rows * real(self._kappa)
                x = rows + dual
            else:
                # Y/μ is T clipped at λ/μ, and S is T less that: neither is stored between sweeps.
                dual = np.clip(old, -before, before)
                x = rows - old
                x += dual
                dual *= real(1 / _GROWTH)
                x += dual
            new = low_rank @ x
            np.subtract(rows, new, out=new)
            new += dual
            clipped = np.clip(new, -after, after)
            dual -= clipped
            # ‖M − L − S‖_F², block by block.
            gap += float(np.vdot(dual, dual))
            np.subtract(new, clipped, out=dual)  # S
            squares += np.einsum("ij,ij->i", dual, dual)
            np.subtract(rows, dual, out=x)
            clipped *= real(1 / _GROWTH)
            x += clipped
            # The next sweep needs only X Xᵀ, n × n.
            gram += x @ x.T
            old[...] = new
        self._gram, self._mu = gram, self._mu * _GROWTH
        return squares, math.sqrt(gap) / self._norm


def _start(updates: npt.NDArray[np.floating]) -> tuple[Matrix, float]:
    """Return MMᵀ and the largest absolute entry of M."""
    gram, largest = np.zeros((len(updates), len(updates))), 0.0
    for start in range(0, updates.shape[1], _BLOCK):
        block = updates[:, start : start + _BLOCK]
        gram += block @ block.T
        largest = max(largest, float(block.max()), -float(block.min()))
    return gram, largest


def _shrinking(gram: Matrix, threshold: float) -> Matrix:
    """Return W, from XXᵀ: W X has singular values reduced by ``threshold``."""
    values, vectors = np.linalg.eigh(gram)
    singular = np.sqrt(np.maximum(values, 0))
    factors = np.zeros_like(singular)
    above = singular > threshold
    factors[above] = 1 - threshold / singular[above]
    shrinking: Matrix = (vectors * factors) @ vectors.T
    return shrinking
