"""Clip norm that follows a quantile of norms by noised bits.

Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with Adaptive Clipping
(NeurIPS 2021), Algorithm 1: each client's bit says whether its update lies within the clip norm S;
the noised share b̄ of set bits moves S ← S·exp(−η_b·(b̄ − κ)) towards the κ-quantile. More than
κ within: S falls. (Flower 1.42 noises the bit "was clipped" and keeps the sign, so it moves away
from the quantile: ``tests/hdpfl_flower/privacy/test_adaptive_clipping.py`` holds both against a
sample.)

A bit is a release. Update and bit are one Gaussian mechanism: the update has sensitivity S and
noise z·S, the bit less ½ has sensitivity ½ and noise s, so the two together have the noise
multiplier (z⁻² + (2s)⁻²)^(−½) (their Theorem 1). FedHDP's Algorithm 1 leaves the bit out.
"""

from __future__ import annotations

import math

from hdpfl_flower.errors import AccountingError

_BIT_SHARE = 3.5
"""Least ratio of bit noise to joint multiplier: 1 % cost."""


def joint_multiplier(update_multiplier: float, bit_noise: float) -> float:
    """Return the noise multiplier of update and bit together.

    Args:
        update_multiplier: z, noise of the update's sum over its sensitivity.
        bit_noise: s, standard deviation of the noise on the sum of bits less ½.

    >>> round(joint_multiplier(1.0, 5.0), 6)
    0.995037
    """
    # Theorem 1: 1/z² adds up. A bit less ½ has sensitivity ½, so its own multiplier is s/½ = 2s.
    return 1 / math.hypot(1 / update_multiplier, 1 / (2 * bit_noise))


def update_multiplier(joint: float, bit_noise: float) -> float:
    """Return z of the update, rounded up; with bit: ``joint``.

    Raises:
        AccountingError: the bits alone have too little noise.

    >>> joint_multiplier(update_multiplier(1.5, 5.0), 5.0) >= 1.5
    True
    """
    if joint == 0:
        return 0.0
    # Otherwise the bits alone cost all of the budget, and no z solves the equation.
    if not 2 * bit_noise > joint:
        raise AccountingError(
            "the noise on the clipping bits is too little for this level; take what "
            "'enough_bit_noise' returns"
        )
    # The inverse of joint_multiplier, rounded up past the error of a few operations. With
    # `enough_bit_noise`, 2s is at least 7 times `joint`: the difference does not cancel.
    z = 1 / math.sqrt(joint**-2 - (2 * bit_noise) ** -2)
    return z * (1 + 1e-12)


def enough_bit_noise(asked: float, strictest: float) -> float:
    """Return s: ``asked``, or more for the strictest level.

    All bits go into one sum, so its noise must do for the strictest level.

    >>> enough_bit_noise(5.0, 1.2), enough_bit_noise(5.0, 10.0)
    (5.0, 35.0)
    """
    return max(asked, _BIT_SHARE * strictest)


def share_within(within: int, count: int, expected: float, noise: float) -> float:
    """Return b̄, the noisy share of unclipped updates, in [0, 1].

    The bits are counted less ½ and divided by a constant, so that neither the sensitivity (½) nor
    the divisor depends on the participants; a value outside of [0, 1] is noise alone.

    Args:
        within: bits that are 1.
        count: bits.
        expected: clients that are expected, a constant.
        noise: the noise drawn for the sum, N(0, s²).

    >>> share_within(3, 4, 4.0, 0.0), share_within(4, 4, 4.0, 9.0)
    (0.75, 1.0)
    """
    centred = within - count / 2 + noise
    return min(max(centred / expected + 0.5, 0.0), 1.0)


def next_clip_norm(
    clip_norm: float, share: float, quantile: float, rate: float, bounds: tuple[float, float]
) -> float:
    """Return S·exp(−η_b·(b̄ − κ)), within ``bounds`` (floor, ceiling).

    >>> next_clip_norm(1.0, 1.0, 0.5, 0.2, (0.01, 100.0)) < 1
    True
    >>> next_clip_norm(1.0, 0.0, 0.5, 0.2, (0.01, 100.0)) > 1
    True
    """
    floor, ceiling = bounds
    return min(max(clip_norm * math.exp(-rate * (share - quantile)), floor), ceiling)
