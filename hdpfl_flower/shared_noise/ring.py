"""Fixed-point numbers modulo 2⁶⁴: a site's part of a sum, and the sum.

A site's part of round r, over d coordinates, is the integer vector

    y = round(x/γ) + G + Σ masks  (mod 2⁶⁴),      x = v·s,   γ = 2⁻³⁰

with v its sum of gradients, each clipped to C, and G discrete Gaussians of variance (1/γ²)/(n − t).
Summed over the n sites of the set, the masks vanish, and what remains is the integer sum itself.

Sensitivity. One record more or less moves v by at most C·(1 + 10⁻⁵) and the rounding of a sum in
float64, which :func:`check_rounding` holds below 8·10⁻⁵·C. So it moves x by at most that times s.
Rounding moves each coordinate by at most 1.5 units more: for either side .5,
and .25 of its product in float64, which is below 2⁵² units. So s = (1/z − 2γ√d)/(C·(1 + 10⁻⁴))
keeps the whole move below 1/z, which is what a noise of standard deviation 1 is accounted for.

Noise. At least n − t of the shares are honest, and their sum is a discrete Gaussian with a variance
above 1/γ² + τ²; by ``discrete_gaussian.py`` that is no less private than a continuous Gaussian with
the standard deviation 1, up to factors of 1 ± 10⁻¹³⁶ on the probabilities of a coordinate and a
statistical distance below n·d·2⁻¹¹⁰ a round. So the sum is a Gaussian mechanism of noise
multiplier z, followed by post-processing.

Size. A coordinate of x is clamped to ±2²² (2⁵² units), which moves no two values further apart; of
2,047 sites and their noises the sum stays below 2⁶³.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.shared_noise.discrete_gaussian import sample

Ring = npt.NDArray[np.uint64]
"""Integers modulo 2⁶⁴."""
GRID: Final = 2.0**-30
"""γ, the value of one unit."""
LIMIT: Final = 2**52
"""Units of a coordinate at most, either way, before the noise."""
LEAST_NOISE: Final = 0.25
"""Least noise multiplier that a site scales by, also where its ε is ∞: its records would else have
an unbounded weight. Such a site gets more privacy than it asks for."""
_CLIP_SLACK: Final = 1 + 1e-4
"""Above the factor by which a record moves the clipped sum beyond C, rounding included."""
_MOST_ROUNDING: Final = 8e-5
"""Of :data:`_CLIP_SLACK`, for the rounding of a sum; a clipped gradient takes 10⁻⁵."""
_NOISE_MARGIN: Final = 1 + 2.0**-40
"""Factor on a share's standard deviation: more than τ² and the rounding of floats take away."""


def scale_of(noise_multiplier: float, clip_norm: float, size: int) -> float:
    """Return s, by which a site multiplies its clipped sum.

    Args:
        noise_multiplier: z of the site, in the round.
        clip_norm: C.
        size: d.

    Raises:
        ValueError: the rounding of so many coordinates takes all of 1/z.
    """
    bound = 1 / noise_multiplier - 2 * GRID * math.sqrt(size)
    if not bound > 0:
        raise ValueError("the model is too large for so much noise")
    return bound / (clip_norm * _CLIP_SLACK)


def check_rounding(records: float, at_once: int) -> None:
    """Refuse sums in float64 whose rounding a scale does not leave room for.

    The rounding of two sums with and without a record is below 2·(b_p + b/b_p)·2⁻⁵³·b·C, for b
    records, b_p of them in memory at a time (``dpsgd.clipped_sum``); b is twice the expected batch,
    which no batch of so many records exceeds.

    Args:
        records: expected batch.
        at_once: b_p.

    Raises:
        ValueError: it may exceed 8·10⁻⁵·C.
    """
    most = 2 * records
    if 2 * (at_once + most / at_once) * 2.0**-53 * most > _MOST_ROUNDING:
        raise ValueError("the rounding of so large a batch is not charged")


def encode(values: npt.NDArray[np.float64]) -> Ring:
    """Return numbers in units of the grid, clamped to ±:data:`LIMIT`; NaN is 0."""
    units = np.rint(np.nan_to_num(values, nan=0.0) / GRID)
    return np.clip(units, -LIMIT, LIMIT).astype(np.int64).view(np.uint64)


def share_of_noise(count: int, honest: int, stream: RandomStream) -> Ring:
    """Return a site's share of the noise, whose sum over ``honest`` sites has the variance 1.

    Args:
        count: of coordinates.
        honest: n − t, the sites of the set that are assumed to be honest; at least 2.
        stream: of the release's noise.
    """
    std = _NOISE_MARGIN / (GRID * math.sqrt(honest))
    return sample(count, std, stream).view(np.uint64)


def decode(total: Ring) -> npt.NDArray[np.float64]:
    """Return the numbers of a sum, float64, same shape."""
    return total.view(np.int64).astype(np.float64) * GRID
