"""Departure of a model from the target's weights: its noise, and a test of its bias.

Weights p in place of the target's q move a model apart by g = Σ (pᵢ − qᵢ)uᵢ in a round. Over the
rounds noise averages out and a bias adds up: :class:`Departure` is the sum of both, and
:meth:`Departure.shares` returns how much of it to keep. As the sum is known, a bias that is found
late is taken back whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.sums import square_sum

Floats = npt.NDArray[np.float64]

RUN_ALARM = 0.4
"""Noise that false alarms may add to p in a run, as a share of its own. With 1 in place of .4 odd
quiet clients cost less (at worst .6 points of FedAvg in place of .9, 70 % of their labels drawn),
and ordinary cases lose .6 to 1.1 (seeds 601 to 606)."""

Parts = Sequence[tuple[int, slice]]
"""Stretches of a model, each with the number of its block; together they cover it."""


def block_sizes(parts: Parts, blocks: int) -> Floats:
    """Return the number of coordinates of each block, shape ``(blocks,)``.

    >>> block_sizes([(0, slice(0, 5)), (1, slice(5, 7)), (0, slice(7, 8))], 2)
    array([6., 2.])
    """
    sizes = np.zeros(blocks)
    for block, stretch in parts:
        sizes[block] += stretch.stop - stretch.start
    return sizes


@dataclass(frozen=True)
class Departure:
    """Sum over rounds of the model's moves by p less those by q.

    Attributes:
        total: Σ ηₛgₛ, float32, shape ``(d,)``; ηₛ is the server's rate.
        noise: expected squared length of its noise, by block of the model, shape ``(blocks,)``.
        of_target: expected squared lengths of the noise of q's moves, summed over the rounds,
            likewise.
        of_own: those of p's.
        factors: client → factor of its updates in ``total``, summed over the rounds, by block.
    """

    total: npt.NDArray[np.float32]
    noise: Floats
    of_target: Floats
    of_own: Floats
    factors: dict[str, Floats]

    def scaled(self, factor: float) -> Departure:
        """Return the departure where all moves are ``factor`` times as long."""
        if factor == 1:
            return self
        square = factor**2
        return Departure(
            np.float32(factor) * self.total,
            square * self.noise,
            square * self.of_target,
            square * self.of_own,
            {site: factor * by_block for site, by_block in self.factors.items()},
        )

    def plus(self, later: Departure) -> Departure:
        """Return the sum with the departure of later rounds; their noise is independent."""
        factors = dict(self.factors)
        for site, by_block in later.factors.items():
            factors[site] = factors[site] + by_block if site in factors else by_block
        return Departure(
            self.total + later.total,
            self.noise + later.noise,
            self.of_target + later.of_target,
            self.of_own + later.of_own,
            factors,
        )

    def noise_at(self, shares: Floats) -> float:
        """Return the noise of moves by q + λ(p − q), summed; λ are the blocks' ``shares``."""
        between = shares * (1 - shares) * self.noise
        return float(np.sum((1 - shares) * self.of_target + shares * self.of_own - between))

    def shares(self, parts: Parts, rounds: int) -> Floats:
        """Return λ in [0, 1] for each block, the share of its departure to keep.

        ‖Σ ηₛgₛ‖² less the noise's expected square estimates the square of the bias without one of
        its own. λ is 1 where that is chance, and 0 where it is not: it is the probability that a
        bias falls short of z standard errors, so that it moves as smoothly as the estimate does.
        There are two tests, of the whole model and of the block alone, and the smaller λ counts: a
        group of clients differs everywhere a little, a label in its class row.

        z is the normal quantile of 1 − α/(2 + 2·log₂ R), for a block of B that of a B-th of it:
        sums of neighbouring rounds hold nearly the same noise, each doubling of the rounds is a
        test (in 3 to 80 rounds .8 to 1.4 times as many false alarms occur where α/2 is .2, and 1
        to 2.6 times where it is .016). α, the expected false alarms of a run, is r·max(a, r), where
        1/r is the noise that p saves, as a share of its own, and a is ``RUN_ALARM``: they add about
        a share a to the noise of p, and more where it saves little, as a bias would cost more.

        Of noise alone the square is taken for a multiple of a χ² with the same mean and variance
        (Satterthwaite, An Approximate Distribution of Estimates of Variance Components, Biometrics
        1946), which it is in one block: of few coordinates it exceeds the normal law's quantiles
        several times as often.

        Args:
            parts: of the model.
            rounds: R of the run.

        Returns:
            Shape ``(blocks,)``; 0 where p has no less noise than q, unless they are equal.
        """
        from scipy.special import chdtrc, ndtr, ndtri

        blocks, own_noise = len(self.noise), float(self.of_own.sum())
        more, chance = float(self.of_target.sum()) - own_noise, float(self.noise.sum())
        if not chance > 0:
            return np.ones(blocks)
        sizes, squares = block_sizes(parts, blocks), np.zeros(blocks)
        for block, stretch in parts:
            squares[block] += square_sum(self.total[stretch])
        used = np.flatnonzero(self.noise > 0)
        freedoms = np.append(sizes[used], chance**2 / (self.noise[used] ** 2 / sizes[used]).sum())
        ratios = np.append(squares[used] / self.noise[used], squares.sum() / chance)
        ratio, least = own_noise / more if more > 0 else math.inf, float(np.finfo(float).eps)
        alarm = ratio * max(RUN_ALARM, ratio) / (2 + 2 * math.log2(rounds))
        alarms = np.append(np.full(len(used), alarm / len(used)), alarm).clip(least, 1 - least)
        chances = 1 - ndtr(ndtri(alarms) - ndtri(chdtrc(freedoms, freedoms * ratios)))
        shares = np.full(blocks, chances[-1])
        shares[used] = np.minimum(chances[:-1], chances[-1])
        return shares
