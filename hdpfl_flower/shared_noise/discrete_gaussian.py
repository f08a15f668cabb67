"""Discrete Gaussians of a large scale, to the bit.

A discrete Gaussian N_Z(0, σ²) takes the integer k with a probability proportional to exp(−k²/2σ²)
(Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, NeurIPS 2020). Two
facts make it as good as a continuous one here. By Poisson summation a sum of exp(−(x + j)²/2τ²)
over the integers j departs from τ·√(2π), relatively, by 2·Σ_{j ≥ 1} exp(−2π²τ²j²) at most, for any
x; that is below ρ(τ) = 3·exp(−2π²τ²) for τ ≥ ¼. A factor "within ρ" lies between (1 − ρ)/(1 + ρ)
and its inverse.

1. For an integer m, N_Z(m, σ²) is N(m, σ² − τ²), rounded at random to an integer k with weights
   exp(−(y − k)²/2τ²), up to a factor within ρ(τ) on each probability (σ ≥ τ). So its privacy is
   that of a continuous Gaussian with the variance σ² − τ², up to this factor for each of the two
   probabilities that are compared; with τ = 4 it differs from 1 by less than 10⁻¹³⁶.
2. B·D₁ + D₀ of independent discrete Gaussians, D₀ with a standard deviation s and D₁ with one of
   s₁ ≥ s, is one with the variance B²·s₁² + s², up to a factor within ρ(s/√(B² + 1)). With B = 1
   that is the sum of two, and so by steps of k of them.

:func:`sample` uses the second fact with B = 8: digits D_j of a standard deviation s ≥ 40 come from
a table of their distribution, with 128 random bits where 64 do not decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hdpfl_flower.privacy.noise import RandomStream

BASE = 8
"""B, the ratio of one digit's place to the next."""
LEAST_SCALE = 40.0
"""Least s of a digit: ρ(40/√65) is below 10⁻²¹⁰."""
SMOOTHING = 4.0
"""τ of the first fact, in units of the integers."""
_BITS, _GUIDE = 128, 16
"""Bits of a probability in the table, and bits that decide most draws."""
_AT_ONCE = 2**18
"""Numbers drawn at once: their words stay in a core's cache."""


@dataclass(frozen=True)
class _Table:
    """Cumulative probabilities of a digit, its least value first.

    Attributes:
        least: the least value.
        upper: the first 64 bits of each cumulative probability, uint64.
        lower: the next 64 bits.
        guide: the value's index by the first 16 bits of a draw, or −1 where they do not decide.
    """

    least: int
    upper: npt.NDArray[np.uint64]
    lower: npt.NDArray[np.uint64]
    guide: npt.NDArray[np.int32]


def sample(count: int, std: float, stream: RandomStream) -> npt.NDArray[np.int64]:
    """Return independent discrete Gaussians, shape ``(count,)``.

    Args:
        count: of numbers.
        std: σ, from 40 to 2⁵⁶.
        stream: of the release's noise.

    Guarantees:
        The variance is never below ``std``². The probabilities of the digits are exact to 2⁻¹²⁷, so
        that the statistical distance of all numbers is below count·2⁻¹¹⁰.

    Raises:
        ValueError: ``std`` is out of range.
    """
    digits, scale = digits_of(std)
    table = _table(scale)
    result = np.empty(count, np.int64)
    for start in range(0, count, _AT_ONCE):
        part = result[start : start + _AT_ONCE]
        part[:] = _digits(table, len(part), stream)
        for _ in range(digits - 1):
            part *= BASE
            part += _digits(table, len(part), stream)
    return result


def digits_of(std: float) -> tuple[int, float]:
    """Return the number of digits of ``std``, and the standard deviation s of each.

    >>> digits_of(100.0)[0], digits_of(2.0**29)[0]
    (1, 8)
    """
    if not LEAST_SCALE <= std <= 2.0**56:
        raise ValueError("the scale of a discrete Gaussian is out of range")
    digits = 1
    while _scale(std, digits + 1) >= LEAST_SCALE:
        digits += 1
    # Rounded up beyond all errors of these floats: never less noise than asked for.
    return digits, _scale(std, digits) * (1 + 2.0**-48)


def _scale(std: float, digits: int) -> float:
    return std / math.sqrt(sum(float(BASE) ** (2 * place) for place in range(digits)))


@lru_cache(maxsize=64)
def _table(scale: float) -> _Table:
    """Return the distribution of a digit; its tails end where they are below 2⁻¹³⁰."""
    reach = math.ceil(scale * math.sqrt(2 * (_BITS + 8) * math.log(2))) + 1
    with localcontext() as context:
        context.prec = 60
        # exp(−(k + 1)²/2s²) is exp(−k²/2s²) times a ratio that falls by the same factor each time.
        ratio = (Decimal(-1) / (2 * Decimal(scale) ** 2)).exp()
        fall, half = ratio * ratio, [Decimal(1)]
        for _ in range(reach):
            half.append(half[-1] * ratio)
            ratio *= fall
        total = half[0] + 2 * sum(half[1:])
        unit, sums, so_far = Decimal(2) ** _BITS / total, list[int](), Decimal(0)
        for value in range(-reach, reach):
            so_far += half[abs(value)]
            sums.append(int(so_far * unit))
    mask = 2**64 - 1
    upper = np.array([number >> 64 for number in sums], np.uint64)
    lower = np.array([number & mask for number in sums], np.uint64)
    # Without a boundary strictly inside, all draws of one guide cell have one value.
    cells = np.searchsorted(upper, np.arange(2**_GUIDE, dtype=np.uint64) << np.uint64(64 - _GUIDE))
    ends = np.append(cells[1:], len(sums))
    # A boundary at a cell's very first word may lie in the cell: such cells are left undecided.
    decided = cells == ends
    return _Table(-reach, upper, lower, np.where(decided, cells, -1).astype(np.int32))


def _digits(table: _Table, count: int, stream: RandomStream) -> npt.NDArray[np.int64]:
    words = np.frombuffer(stream.bytes(8 * count), np.uint64)
    index = table.guide[words >> np.uint64(64 - _GUIDE)].astype(np.int64)
    undecided = np.flatnonzero(index < 0)
    drawn = words[undecided]
    index[undecided] = np.searchsorted(table.upper, drawn, side="left")
    # The same first 64 bits as a boundary: 64 more bits decide, of this draw alone.
    equal = np.flatnonzero(table.upper[np.minimum(index[undecided], len(table.upper) - 1)] == drawn)
    for place in equal:
        index[undecided[place]] = _by_all_bits(table, drawn[place], stream)
    result: npt.NDArray[np.int64] = index + table.least
    return result


def _by_all_bits(table: _Table, word: np.uint64, stream: RandomStream) -> int:
    """Return the index of a draw whose first word is that of a boundary."""
    more = int.from_bytes(stream.bytes(8), "little")
    draw = (int(word) << 64) | more
    first = int(np.searchsorted(table.upper, word, side="left"))
    last = int(np.searchsorted(table.upper, word, side="right"))
    for place in range(first, last):
        if draw < (int(table.upper[place]) << 64) | int(table.lower[place]):
            return place
    return last
