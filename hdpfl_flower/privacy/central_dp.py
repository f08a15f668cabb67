"""Client-level privacy by a trusted server: plans and noisy means.

FedHDP, Algorithm 1 (the step within a level) with the accounting that it leaves open: the unit is
one client with all of its records, the relation add/remove one client, the adversary sees the
models of all rounds, not the participants. Each round takes every client with probability q
(Poisson), so that q amplifies; sums are divided by the constant q·Nⱼ, never by the number of
replies.

The clipping bits of all levels go into one noised sum; each level's update noise follows from its
(ε, δ) after the bits are paid (``adaptive_clipping.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.sums import exact_sum, square_sum
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.privacy.adaptive_clipping import enough_bit_noise, update_multiplier
from hdpfl_flower.privacy.clipped_update import BELOW, clip_update
from hdpfl_flower.privacy.noise import RandomStream, add_noise

Floats = npt.NDArray[np.float64]

_AT = 1 - 1e-5
"""Norm from which a received update counts as clipped."""


@dataclass(frozen=True)
class Level:
    """One level's part of a run.

    Attributes:
        epsilon: ε of each of its clients; ``inf`` is no privacy.
        delta: δ.
        clients: Nⱼ, those of the run, a public number.
        noise_multiplier: z of the update; 0 where ε is infinite.
        expected: q·Nⱼ, the divisor.
    """

    epsilon: float
    delta: float
    clients: int
    noise_multiplier: float
    expected: float

    @property
    def private(self) -> bool:
        """Whether the level is promised anything."""
        return math.isfinite(self.epsilon)


@dataclass(frozen=True)
class CentralPlan:
    """Round of the server.

    Attributes:
        levels: the loosest first.
        sampling_prob: q, of a client in a round.
        rounds: T.
        bit_noise: s, standard deviation of the noise on the sum of all bits less ½; 0: no bits.
    """

    levels: tuple[Level, ...]
    sampling_prob: float
    rounds: int
    bit_noise: float


def make_central_plan(
    menu: Sequence[float],
    counts: Sequence[int],
    delta: float,
    sampling_prob: float,
    rounds: int,
    bit_noise: float,
) -> CentralPlan:
    """Return the plan under which each level has its (ε, δ) over all rounds, bits included.

    Args:
        menu: ε of each level.
        counts: clients of each level.
        delta: δ of every level.
        sampling_prob: q.
        rounds: T.
        bit_noise: s that is asked for; more where the strictest level needs it. 0: the clip norm
            stays, and there are no bits.

    Guarantees:
        Noise is rounded up: PLD, pessimistic, for T Poisson-sampled joint Gaussians of update and
        bit; add/remove one client.

    Raises:
        AccountingError: no noise can pay for the rounds.
    """
    schedule = (Steps(sampling_prob, rounds),)
    joint = [calibrate(schedule, epsilon, delta) for epsilon in menu]
    # One sum of bits serves all levels: its noise is made for the level with the most.
    noise = enough_bit_noise(bit_noise, max(joint)) if bit_noise else 0.0
    levels = tuple(
        Level(
            epsilon=epsilon,
            delta=delta,
            clients=count,
            noise_multiplier=update_multiplier(z, noise) if noise else z,
            expected=sampling_prob * count,
        )
        for epsilon, count, z in zip(menu, counts, joint, strict=True)
    )
    return CentralPlan(levels, sampling_prob, rounds, noise)


def clipped_rows(rows: npt.NDArray[np.float32], clip_norm: float) -> npt.NDArray[np.float32]:
    """Return each row clipped as :func:`clip_update` does, float32, shape ``(n, d)``.

    >>> clipped_rows(np.array([[3.0, 4.0]], np.float32), 10.0)
    array([[3., 4.]], dtype=float32)
    """
    clipped = [clip_update(row.astype(np.float64), clip_norm) for row in rows]
    return np.array(clipped, np.float32).reshape(rows.shape)


def clipped_sum(
    rows: npt.NDArray[np.float32],
    clip_norm: float,
    chosen: npt.NDArray[np.int64] | None = None,
    squares: Floats | None = None,
) -> tuple[npt.NDArray[np.float64], int]:
    """Return the clipped rows' sum and the number within S.

    Rows are clipped again, whatever the sites did: the noise is made for S. A site that clips
    (:func:`clip_update`) leaves a norm that reveals the bit. One pass where ``squares``
    are known, else one more for them; without a copy of the rows.

    Args:
        rows: float32, shape ``(n, d)``; n may be 0.
        clip_norm: S.
        chosen: the rows that count, all of them without it.
        squares: ‖u‖² of all rows, see ``RoundUpdates.squares``, shape ``(n,)``. The promise rests
            on them: they must be of these very rows.
    """
    places = np.arange(len(rows)) if chosen is None else chosen
    if squares is None:
        squares = np.array([square_sum(row) for row in rows], dtype=np.float64)
    norms = np.sqrt(squares[places])
    # NaN and infinity contribute nothing: 0·NaN would still be NaN.
    finite = np.isfinite(norms)
    bound = clip_norm * BELOW
    # min(1, S/‖u‖); the maximum avoids a division by a norm of 0.
    scales = np.minimum(1.0, bound / np.maximum(norms[finite], bound))
    total = exact_sum(scales, rows, places[finite])
    return total, int((norms < clip_norm * _AT).sum())


def noisy_mean(total: Floats, level: Level, clip_norm: float, stream: RandomStream) -> Floats:
    """Return (total + N(0, (z·S)²)) / (q·Nⱼ) of a private level, shape ``(d,)``.

    Args:
        total: the sum of the clipped updates, zeros without a reply: noise all the same.
        level: gives z and q·Nⱼ.
        clip_norm: S.
        stream: the server's noise, used up.
    """
    import torch  # as in noise.py

    std = level.noise_multiplier * clip_norm
    # Noise before the division, both by public constants: the mean is post-processing.
    noisy = add_noise(torch.from_numpy(total), std, stream).numpy()
    mean: Floats = noisy / level.expected
    return mean


def mean_variance(level: Level, clip_norm: float, size: int) -> float:
    """Return Vⱼ of a private level's mean, summed over the coordinates: S²/(qN) + d·(zS/(qN))²."""
    noise = level.noise_multiplier * clip_norm / level.expected
    return clip_norm**2 / level.expected + size * noise**2
