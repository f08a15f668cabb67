"""Weights that estimate a mean of all clients' signals with the least error, from noisy sums.

Over the rounds each client i sends its signal mᵢ with noise of its own. A mean Σ pᵢmᵢ with other
weights than the target's qᵢ has a bias ‖Σ (pᵢ − qᵢ)mᵢ‖, which adds up over the rounds, and noise,
which averages out. :func:`differences` estimates how clients differ and what noise hides of it,
:func:`least_error_weights` returns the weights of the least sum of both, and
:class:`LeftOut` tests whether these leave out more than was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.threads import one_thread

Floats = npt.NDArray[np.float64]

FALSE_ALARM = 0.01
"""Chance that noise alone counts as a difference, of a block or of a client, in a round."""
RUN_ALARM = 1.0
"""α, the expected number of times in a run that noise alone moves the weights more than half way to
the target, where that at most doubles the noise; in proportion less where it costs more. Of .1, .5,
1, 2 and 3.5 quiet clients that are odd leave the worst case 8, 5, 4, 3 and 2 points behind FedAvg
(seeds 601 and 602); each step takes 0 to 1 point from other cases."""
_QUANTILE = 2.0234
"""Quantile 1 − ``FALSE_ALARM`` of the law of Tracy and Widom of order 1 (Bejan 2005, table)."""
_COLUMNS = 4_096
"""Coordinates that are in float64 at once."""
_TRIES = 3
"""Passes that may change several coordinates without progress before they change one at a time."""
_PASSES = 10
"""Passes a client at most; rounding alone could need more."""
_ROUNDING = 1e-9
"""Share of 1 below which a condition counts as met."""


@dataclass(frozen=True)
class ClientDifferences:
    """Estimate of the differences between clients, with its uncertainty.

    For all w with Σw = 0, ‖Fᵀw‖² + Σ wᵢ²hᵢ estimates ‖Σ wᵢmᵢ‖².

    Attributes:
        factors: F, each client's difference in the r < n directions seen, shape ``(n, r)``.
        hidden: hᵢ, the expected squared length of its error, shape ``(n,)``: what noise may hide.
    """

    factors: Floats
    hidden: Floats

    def times(self, weight: float) -> ClientDifferences:
        """Return the differences whose squares count ``weight`` times."""
        return ClientDifferences(math.sqrt(weight) * self.factors, weight * self.hidden)


def differences(sums: npt.NDArray[np.floating], rounds: Floats, noise: Floats) -> ClientDifferences:
    """Estimate the differences between clients' mean signals mᵢ, up to a shared part.

    The mean upload of client i is its signal mᵢ and noise of variance eᵢ = ``noise[i]``/
    ``rounds[i]``² a coordinate. In units of that noise, uploads of clients that all have one signal
    are a multiple of u = 1/sd and noise. Without the component along u, directions of their Gram
    matrix whose eigenvalues exceed the largest of noise alone are differences between clients.

    What a client has in such a direction k holds noise of eᵢ; the larger of two shares is kept:

    * τₖ²/(τₖ² + eᵢ), the posterior mean where differences have the variance τₖ², which the precise
      clients decide (DerSimonian and Laird's estimate);
    * 1 − χ²·eᵢ/‖Fᵢ‖², the factor of James and Stein with the quantile of noise alone in place of
      its mean: a noisy client that alone differs keeps what is surely its own.

    That share of eᵢ, over the directions, is the variance of what is kept, ``hidden``.

    Args:
        sums: of each client's uploads, shape ``(n, d)``.
        rounds: uploads in each sum, positive, shape ``(n,)``.
        noise: the sum of their noise variances a coordinate, positive, shape ``(n,)``.

    Returns:
        r directions; where all clients have one signal, r > 0 in about ``FALSE_ALARM`` of all
        cases, in less where n or d is small. Where nothing is seen, nothing is hidden.

    References: Johnstone, On the Distribution of the Largest Eigenvalue in Principal Components
    Analysis (Annals of Statistics 2001), for the centre and the scale; DerSimonian and Laird,
    Meta-analysis in Clinical Trials (Controlled Clinical Trials 1986); James and Stein, Estimation
    with Quadratic Loss (Berkeley Symposium 1961).
    """
    from scipy.special import chdtri

    n, d = sums.shape
    scales = np.sqrt(noise) / rounds
    common = 1 / scales / np.linalg.norm(1 / scales)
    with one_thread():
        units = _products(sums) / np.outer(np.sqrt(noise), np.sqrt(noise))
        # Of orthonormal rows noise stays independent: n − 1 dimensions of it are left.
        apart = np.eye(n) - np.outer(common, common)
        values, vectors = np.linalg.eigh(apart @ units @ apart)
    kept = values > _largest_of_noise(n - 1, d)
    found = values[kept] - d
    factors: Floats = scales[:, None] * vectors[:, kept] * np.sqrt(found)
    if not len(found):
        return ClientDifferences(factors, np.zeros(n))
    variances = np.square(scales)
    precision = 1 / variances
    # E Σ |mᵢ − m̄|²/eᵢ of differences of the variance τ², m̄ the mean by precision.
    pooled = found / (precision.sum() - np.square(precision).sum() / precision.sum())
    squares = np.maximum(np.square(factors).sum(axis=1), np.finfo(float).tiny)
    own = 1 - chdtri(len(found), FALSE_ALARM) * variances / squares
    share = np.maximum(pooled / (pooled + variances[:, None]), own[:, None])
    return ClientDifferences(factors * share, share.sum(axis=1) * variances)


def _products(rows: npt.NDArray[np.floating]) -> Floats:
    """Return the rows' inner products in float64, of which no more than a few columns exist."""
    found = np.zeros((len(rows), len(rows)))
    for first in range(0, rows.shape[1], _COLUMNS):
        part = rows[:, first : first + _COLUMNS].astype(np.float64)
        found += part @ part.T
    return found


def _largest_of_noise(n: int, d: int) -> float:
    """Return what the largest eigenvalue of n × n products of noise exceeds by chance alone."""
    wide, high = math.sqrt(max(d - 1, 1)), math.sqrt(max(n, 1))
    scale = (wide + high) * math.cbrt(1 / wide + 1 / high)
    return (wide + high) ** 2 + _QUANTILE * scale


def least_error_weights(target: Floats, differ: ClientDifferences, noise: Floats) -> Floats:
    """Return p ≥ 0, Σp = 1, of the least ‖Fᵀ(p − q)‖² + Σ (pᵢ − qᵢ)²hᵢ + Σ pᵢ²·noiseᵢ.

    On Σp = 1 the error is pᵀQp. With E = diag(h + noise), G = F − 1(Fᵀq)ᵀ, s = Σ qᵢ²hᵢ and
    v = h∘q/s it is Q = E + GGᵀ + s(1 − v)(1 − v)ᵀ − s·vvᵀ: diagonal, and of rank r + 2 besides.
    With p = x/Σx the least is where x ≥ 0, Qx ≥ 1 and xᵢ(Qx − 1)ᵢ = 0: a linear complementarity
    problem, solved by block principal pivoting (Júdice and Pires, Computers & Operations Research
    1994), which ends because Q is positive definite. A pass takes n·r² operations.

    Args:
        target: q, convex, shape ``(n,)``.
        differ: F and h.
        noise: shape ``(n,)``, positive.

    Returns:
        Shape ``(n,)``.

    >>> half, none = np.array([0.5, 0.5]), np.zeros(2)
    >>> least_error_weights(half, ClientDifferences(np.zeros((2, 0)), none), np.array([1.0, 4.0]))
    array([0.8, 0.2])
    >>> far = ClientDifferences(1e3 * np.eye(2), none)
    >>> least_error_weights(half, far, np.array([1.0, 4.0])).round(3)
    array([0.5, 0.5])
    """
    n, own = len(target), differ.hidden * target
    columns, signs = [differ.factors - differ.factors.T @ target], np.ones(differ.factors.shape[1])
    apart = float(own @ target)
    if apart > 0:
        beside = own / apart
        columns += [math.sqrt(apart) * np.stack([1 - beside, beside], axis=1)]
        signs = np.append(signs, [1.0, -1.0])
    # In units of the diagonal, which differs a million times: x = y/√E.
    ones = 1 / np.sqrt(differ.hidden + noise)
    scaled = np.concatenate(columns, axis=1) * ones[:, None]
    free, fewest, tries = np.ones(n, dtype=np.bool_), n + 1, _TRIES
    solution = ones
    with one_thread():
        for _ in range(_PASSES * n):
            solution = _on_support(scaled, signs, ones, free)
            slack = scaled @ (signs * (scaled.T @ solution)) - ones
            wrong = np.flatnonzero(np.where(free, solution < 0, slack < -_ROUNDING * ones))
            if not len(wrong):
                break
            if len(wrong) < fewest:
                fewest, tries = len(wrong), _TRIES
            elif tries:
                tries -= 1
            else:
                wrong = wrong[-1:]  # Murty's rule: one at a time cannot cycle
            free[wrong] = ~free[wrong]
    found = np.maximum(solution, 0) * ones
    weights: Floats = found / found.sum()
    return weights


def _on_support(scaled: Floats, signs: Floats, ones: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Return y of (HSHᵀ + I)y = o on the free coordinates, 0 elsewhere, by a system of r × r.

    H is ``scaled`` and S = diag(``signs``), which is its own inverse.
    """
    part, right = scaled[free], ones[free]
    inner = np.diag(signs) + part.T @ part
    solution = np.zeros(len(free))
    solution[free] = right - part @ np.linalg.solve(inner, part.T @ right)
    return solution


@dataclass
class LeftOut:
    """Test of the one direction that matters, Σ (pᵢ − qᵢ)mᵢ, over all blocks of a model together.

    Where many noisy clients say the same and few quiet ones differ, no block shows a direction. But
    ‖Σ wᵢSᵢ/tᵢ‖² − d·Σ wᵢ²eᵢ, w = p − q and Sᵢ the sum of tᵢ uploads, estimates ‖Σ wᵢmᵢ‖² without
    bias, with a variance of 2d·(Σ wᵢ²eᵢ)² where that is 0, and no direction is searched for. Here q
    has a part for clients that are absent now, so that their earlier uploads count; the noise below
    is that of this round's uploads.

    Attributes:
        squares: the sum of these estimates over the blocks.
        chance: that of what is subtracted.
        variance: the sum of their variances.
        noise: that of the target's weights, Σ d·qᵢ²·noiseᵢ.
        saved: how fast the noise falls from q to p, −Σ d·wᵢqᵢ·noiseᵢ.
        curve: d·Σ wᵢ²·noiseᵢ, by which this slows down.
    """

    squares: float = 0.0
    chance: float = 0.0
    variance: float = 0.0
    noise: float = 0.0
    saved: float = 0.0
    curve: float = 0.0

    def add(
        self, means: Floats, error: float, apart: Floats, target: Floats, noise: Floats
    ) -> None:
        """Add a block.

        Args:
            means: Σ wᵢSᵢ/tᵢ over all clients that have sums, shape ``(d,)``.
            error: Σ wᵢ²eᵢ, its variance a coordinate; eᵢ is that of Sᵢ/tᵢ.
            apart: p − q of this round's clients, shape ``(n,)``.
            target: q, likewise.
            noise: that of this round's uploads a coordinate, likewise.
        """
        size = len(means)
        chance = size * error
        self.squares += float(means @ means) - chance
        self.chance += chance
        self.variance += 2 * chance**2 / size
        self.noise += size * float(np.square(target) @ noise)
        self.saved -= size * float((apart * target) @ noise)
        self.curve += size * float(np.square(apart) @ noise)

    def share(self, curvature: float, rounds: int) -> float:
        """Return λ in [0, 1], with which q + λ(p − q) has the least error on the line.

        That is where the bias is what is estimated. Where it is chance λ is 1; in between it is
        their mean, with the probability that a bias exceeds z standard errors: it moves as smoothly
        as the estimate does. z is the normal quantile of 1 − α/(1 + log₂ R): sums of neighbouring
        rounds hold nearly the same noise, each doubling of the rounds is a test. α is
        ``RUN_ALARM``/max(1, ρ − 1) where the target's noise is ρ times that of p, so that what
        false alarms add to the noise of p is no more than that share of it.

        Of noise alone ‖Σ wᵢSᵢ/tᵢ‖² is taken for a multiple of a χ² with the same mean and variance
        (Satterthwaite 1946), which it is in a model of one block: of few coordinates it exceeds the
        normal law's quantiles several times as often.

        Args:
            curvature: what a squared bias of a round counts over its noise.
            rounds: R of the run, in all of which the bias is the same.
        """
        from scipy.special import chdtrc, ndtr, ndtri

        error = curvature * rounds * max(0.0, self.squares) + self.curve
        more = 2 * self.saved - self.curve  # of the target's noise than of p's; below 0 by rounding
        if not (self.saved < error and more > 0):
            return 1.0
        alarm = RUN_ALARM * min(1.0, max((self.noise - more) / more, np.finfo(float).eps))
        freedom = 2 * self.chance**2 / self.variance
        tail = chdtrc(freedom, freedom * (1 + self.squares / self.chance))
        sure = ndtr(ndtri(alarm / (1 + math.log2(rounds))) - ndtri(tail))
        return 1.0 - float(sure) * (1 - self.saved / error)
