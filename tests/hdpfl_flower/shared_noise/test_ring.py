"""Fixed-point numbers of a sum: how far one record moves them, and that no sum overflows."""

from __future__ import annotations

import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.shared_noise.discrete_gaussian import _table, digits_of
from hdpfl_flower.shared_noise.keys import MOST_MEMBERS
from hdpfl_flower.shared_noise.ring import (
    GRID,
    LIMIT,
    Ring,
    check_rounding,
    decode,
    encode,
    scale_of,
    share_of_noise,
)

CLIPPED = 1 + 1e-5
"""Norm of a clipped gradient over C at most, by ``engines.py``."""
Floats = npt.NDArray[np.float64]


def signed(part: Ring) -> list[int]:
    return [int(number) for number in part.view(np.int64)]


def square_of_move(first: Ring, second: Ring) -> int:
    """Return the squared l2 distance in units, exactly."""
    return sum((a - b) ** 2 for a, b in zip(signed(first), signed(second), strict=True))


def check_move(values: Floats, record: Floats, z: float, clip: float) -> float:
    """Fail where a record moves what is encoded by more than 1/z; return its share of that."""
    scale = scale_of(z, clip, len(values))
    moved = square_of_move(encode(values * scale), encode((values + record) * scale))
    bound = Fraction(1) / (Fraction(z) * Fraction(GRID))
    assert moved <= bound**2
    return math.sqrt(moved) / float(bound)


def clipped(direction: Floats, clip: float) -> Floats:
    """Return a record's gradient of the largest norm that clipping lets through."""
    found: Floats = direction * (clip * CLIPPED / np.linalg.norm(direction) * (1 - 1e-15))
    return found


@settings(max_examples=300)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.25, 2000),
    st.floats(1e-4, 1e4),
    st.integers(1, 400),
    st.floats(0, 7),
)
def test_a_record_moves_the_encoded_sum_by_its_share(
    seed: int, z: float, clip: float, size: int, records: float
) -> None:
    draws = np.random.default_rng(seed)
    values = clip * 10**records * draws.standard_normal(size)
    direction = draws.standard_normal(size) * draws.choice([1, 1e-6], size)
    check_move(values, clipped(direction, clip), z, clip)


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1), st.floats(0.25, 2000), st.integers(1, 300))
def test_neighbouring_sums_in_float32(seed: int, z: float, size: int) -> None:
    """Sums as an engine makes them: numbers of float32, of which one record takes some away."""
    draws = np.random.default_rng(seed)
    values = draws.integers(-(2**20), 2**20, size).astype(np.float32)
    record = clipped(draws.standard_normal(size), 2.0**20).astype(np.float32)
    record *= np.float32(1 - 1e-6)
    total = values.astype(np.float64) + record
    check_move(values.astype(np.float64), total - values, z, 2.0**20)


@pytest.mark.parametrize("z", [0.25, 1.0, 300.0, 2000.0])
@pytest.mark.parametrize("size", [1, 100, 40_000])
def test_values_at_the_edge_of_rounding_move_no_further(z: float, size: int) -> None:
    """Each coordinate lies just below a half, and the record pushes each of them over another."""
    clip = 1.0
    scale = scale_of(z, clip, size)
    record = clipped(np.ones(size), clip)
    step = float(record[0]) * scale / GRID
    shares = []
    for below in (1e-9, 1e-7, 1e-3):
        # In units: x at or below a half, and after the record's step just above one.
        start = math.ceil(step) - step - 0.5 + below
        units = np.floor(np.linspace(-1000, 1000, size)) + start
        shares.append(check_move(units * GRID / scale, record, z, clip))
    assert max(shares) > 0.99, "values without any move show nothing"


def test_the_rounding_of_coordinates_is_charged() -> None:
    """Without 2γ√d taken off the scale, rounding alone would pass the bound."""
    z, size = 1e5, 40_000
    record = clipped(np.ones(size), 1.0)
    scale = (1 / z) / (1 + 1e-4)  # all of 1/z for the record, and its own rounding
    step = float(record[0]) * scale / GRID
    start = math.ceil(step) - step - 0.5 + 1e-6
    units = np.full(size, start) * GRID / scale
    moved = square_of_move(encode(units * scale), encode((units + record) * scale))
    assert moved > (1 / (z * GRID)) ** 2
    check_move(units, record, z, 1.0)


@pytest.mark.parametrize("z", [0.25, 5.0])
def test_clamped_sums_move_no_further(z: float) -> None:
    clip, size = 1.0, 16
    scale = scale_of(z, clip, size)
    record = clipped(np.ones(size), clip)
    for edge in (LIMIT * GRID, -LIMIT * GRID):
        for inside in (0.0, 0.4 * float(record[0]), 2 * float(record[0]), -1.0, 1e9):
            values = np.full(size, edge / scale) - math.copysign(inside, edge)
            check_move(values, record, z, clip)
            check_move(values, -record, z, clip)


def test_encoding_is_exact_rounded_and_clamped() -> None:
    units = np.array([0, 1, -1, LIMIT, -LIMIT, 12345678901234, -7], np.float64)
    assert signed(encode(units * GRID)) == [int(unit) for unit in units]
    np.testing.assert_array_equal(decode(encode(units * GRID)), units * GRID)
    assert signed(encode(np.array([0.49, 0.51, -0.51, 1.5]) * GRID)) == [0, 1, -1, 2]
    far = np.array([np.inf, -np.inf, 1e300, -1e300, 2.0**23, np.nan])
    with np.errstate(over="ignore"):
        assert signed(encode(far)) == [LIMIT, -LIMIT, LIMIT, -LIMIT, LIMIT, 0]


def test_no_scale_where_rounding_takes_all_of_the_noise() -> None:
    with pytest.raises(ValueError, match="too large"):
        scale_of(2.0**29, 1.0, 2)
    assert scale_of(2.0**28, 1.0, 1) > 0


@pytest.mark.parametrize(
    ("records", "at_once", "holds"),
    [(4e6, 256, True), (1.2e7, 256, False), (2.5e5, 1, True), (6e5, 1, False), (2e8, 2e8, False)],
)
def test_a_sum_whose_rounding_the_scale_has_no_room_for_is_refused(
    records: float, at_once: int, holds: bool
) -> None:
    """By Higham's bound, in exact numbers: γ_n·b for n additions of a chunk and of the chunks."""
    unit, batch = Fraction(1, 2**53), Fraction(2 * records)
    bound = 2 * (at_once + batch / Fraction(at_once)) * unit * batch
    assert (bound + Fraction(1, 10**5) <= Fraction(9, 10**5)) == holds
    with nullcontext() if holds else pytest.raises(ValueError, match="rounding"):
        check_rounding(records, at_once)


def largest_noise(honest: int) -> int:
    """Return the largest number that a share of the noise may have."""
    std = 2.0**30 * (1 + 2.0**-40) / math.sqrt(honest)
    digits, scale = digits_of(std)
    return -_table(scale).least * sum(1 << 3 * place for place in range(digits))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_ring_holds_all_members_at_the_limit_with_their_noise(sign: int) -> None:
    honest = 2  # the widest share: all others collude
    noise = np.array([sign * largest_noise(honest)], np.int64).view(np.uint64)
    total, expected = np.zeros(1, np.uint64), 0
    for _ in range(MOST_MEMBERS):
        part = encode(np.array([sign * 1e30])) + noise
        expected += sign * LIMIT + sign * largest_noise(honest)
        total += part
    assert abs(expected) < 2**63
    assert signed(total) == [expected]
    assert decode(total)[0] == float(expected) * GRID


@pytest.mark.parametrize("honest", [2, 3, 14, MOST_MEMBERS - 1])
def test_the_shares_of_the_honest_have_the_variance_one_together(honest: int) -> None:
    """The sum's χ², with a false alarm of 1e-6; a share of 1/(n) for n − t + 1 sites is found."""
    count = 40_000
    shares = share_of_noise(count, honest, RandomStream(bytes(32)))
    squares = honest * float((decode(shares) ** 2).sum())
    low, high = (float(stats.chi2.ppf(p, count)) for p in (5e-7, 1 - 5e-7))
    assert low < squares < high
    if honest < 15:
        assert squares * honest / (honest + 1) < low


def test_the_margin_of_a_share_covers_the_smoothing_and_the_floats() -> None:
    """Variance of the honest sum, as digits have it, above 1/γ² + τ², in whole numbers."""
    for honest in (2, 3, 7, 100, MOST_MEMBERS):
        std = (1 + 2.0**-40) / (GRID * math.sqrt(honest))
        digits, scale = digits_of(std)
        places = sum(Fraction(64) ** place for place in range(digits))
        assert honest * places * Fraction(scale) ** 2 > Fraction(2) ** 60 + 4**2
