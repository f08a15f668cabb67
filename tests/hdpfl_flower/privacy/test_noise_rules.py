"""Streams by their formulas: every number is computed again from AES' own bytes, to the last bits.

``test_noise.py`` tests what the numbers are distributed as; here a wrong constant shows at once.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hdpfl_flower.privacy.noise import Positions, RandomStream, ReleaseStreams, add_noise

KEY = bytes(range(32))
BLOCK = 16_384
"""Normals that share their pairs: seeded simulations are repeated by it."""


def aes(count: int, key: bytes = KEY) -> bytes:
    """The first bytes of AES-256 in counter mode, from block 0 on."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))


class Given(RandomStream):
    """A stream that yields the words it is given, and no more than them."""

    def __init__(self, words: list[int]) -> None:
        self._left = np.array(words, dtype=np.uint64).tobytes()

    def bytes(self, count: int) -> bytes:
        taken, self._left = self._left[:count], self._left[count:]
        assert len(taken) == count
        return taken

    def fill(self, target: memoryview) -> None:
        target[:-15] = self.bytes(len(target) - 15)


@pytest.mark.parametrize("position", [0, 1, 7, 15, 16, 17, 31, 32, 4096, 100_001])
def test_a_stream_goes_on_where_it_was_left(position: int) -> None:
    stream = RandomStream(KEY, position)
    assert stream.position == position
    assert stream.bytes(100) == aes(position + 100)[position:]
    assert stream.position == position + 100


def test_a_stream_starts_at_its_start() -> None:
    stream = RandomStream(KEY)
    assert stream.position == 0
    assert stream.bytes(33) + stream.bytes(0) + stream.bytes(7) == aes(40)
    assert stream.position == 40


def test_a_stream_counts_beyond_64_bits() -> None:
    """Block 2⁶⁵ + 3, by the mode that counts there itself."""
    block = 2**65 + 3
    counter = modes.CTR(block.to_bytes(16, "big"))
    expected = Cipher(algorithms.AES(KEY), counter).encryptor().update(bytes(32))
    assert RandomStream(KEY, 16 * block + 5).bytes(27) == expected[5:]


def test_trials_take_four_bytes_each_and_none_where_all_succeed() -> None:
    for probability, expected in ((0.25, 400), (1.0, 0), (math.nextafter(1, 0), 400), (0.0, 400)):
        stream = RandomStream(KEY)
        found = stream.bernoulli(100, probability)
        assert stream.position == expected
        words = np.frombuffer(aes(400), dtype="<u4")
        assert found.tolist() == [i for i, word in enumerate(words) if word < probability * 2**32]


def box_muller(words: np.ndarray) -> np.ndarray:
    """Pairs of the first half, the radii, and the second, the angles: cosines, then sines."""
    uniform = ((words & np.uint64(2**53 - 1)).astype(np.float64) + 1) / 2**53
    radius, turn = np.split(uniform, 2)
    length, angle = np.sqrt(-2 * np.log(radius)), 2 * math.pi * turn
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])


@pytest.mark.parametrize("count", [1, 2, 5, 6, BLOCK - 1, BLOCK, BLOCK + 3, 2 * BLOCK + 8])
def test_normals_are_box_and_mullers(count: int) -> None:
    stream, parts, start = RandomStream(KEY), [], 0
    for left in range(count, 0, -BLOCK):
        some = min(left, BLOCK)
        words = 2 * math.ceil(some / 2)
        taken = aes(start + 8 * words)[start:]
        parts.append(box_muller(np.frombuffer(taken, dtype="<u8"))[:some])
        start += 8 * words
    np.testing.assert_allclose(stream.normal(count), np.concatenate(parts), rtol=0, atol=1e-14)
    assert stream.position == start


CORNERS = [0, 1, 2, 3, 2**52, 2**53 - 2, 2**53 - 1, 2**53, 2**53 + 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("word", CORNERS)
def test_a_normal_of_one_word_is_that_of_its_53_low_bits(word: int) -> None:
    """√(−2 ln u) of u = (w + 1)·2⁻⁵³, which is 1 at most and never 0."""
    uniform = Fraction(word % 2**53 + 1, 2**53)
    length = math.sqrt(-2 * math.log(uniform))
    one, other = Given([word, 2**51 - 1]).normal(2).tolist()  # a quarter of a turn
    assert other == pytest.approx(length, rel=1e-12, abs=1e-15)
    assert abs(one) <= 1e-15 * length
    one, other = Given([word, 2**52 - 1]).normal(2).tolist()  # a half
    assert one == pytest.approx(-length, rel=1e-12, abs=1e-15)
    assert abs(other) <= 2e-15 * length
    angle = 2 * math.pi * float(uniform)
    one, other = Given([0, word]).normal(2).tolist()
    farthest = math.sqrt(106 * math.log(2))
    assert one == pytest.approx(farthest * math.cos(angle), abs=1e-13)
    assert other == pytest.approx(farthest * math.sin(angle), abs=1e-13)


def test_gumbels_are_those_of_the_52_high_bits() -> None:
    """−ln(−ln(1 − u)) of u = (h + 1/2)·2⁻⁵²: from −3.6 to 36.7."""
    words = [*CORNERS, 4095, 4096, 4097, 2**63 - 1, 2**63 + 2**12, 2**64 - 4096, 2**64 - 4097]
    found = Given(words).gumbel(len(words))
    for word, value in zip(words, found.tolist(), strict=True):
        uniform = Fraction(2 * (word >> 12) + 1, 2**53)
        # The logarithm is taken of what is small beside 1, so that no digit is lost.
        exponential = -math.log1p(-float(uniform)) if uniform < 0.5 else -math.log(1 - uniform)
        assert value == pytest.approx(-math.log(exponential), rel=1e-12, abs=1e-14)
    assert found.max() == pytest.approx(53 * math.log(2))
    assert found.min() == pytest.approx(-math.log(53 * math.log(2)))
    stream = RandomStream(KEY)
    whole = Given(np.frombuffer(aes(8 * 101), dtype="<u8").tolist()).gumbel(101)
    np.testing.assert_array_equal(stream.gumbel(101), whole)
    assert stream.position == 8 * 101


def test_simulated_streams_start_at_their_start_or_where_they_were_left() -> None:
    keys = [
        hashlib.sha256(repr(("hdpfl simulation", 5, "a", 2, "update", what)).encode()).digest()
        for what in ("sampling", "noise")
    ]
    both = ReleaseStreams.simulated(5, "a", 2, "update")
    assert (both.sampling.position, both.noise.position) == (0, 0)
    assert both.sampling.bytes(40) == aes(40, keys[0])
    assert both.noise.bytes(40) == aes(40, keys[1])
    left = ReleaseStreams.simulated(5, "a", 2, "update", Positions(3, 21))
    assert left.sampling.bytes(10) == aes(13, keys[0])[3:]
    assert left.noise.bytes(10) == aes(31, keys[1])[21:]


@pytest.mark.parametrize(
    "std", [0.5, math.nextafter(0.5, 0), 0.7, 1.0, math.nextafter(2, 0), 2.0, 3e-9]
)
def test_a_noisy_sum_is_the_nearest_place_of_the_grid(std: float) -> None:
    """The grid is the power of two in (std·2⁻²¹, std·2⁻²⁰]; half a step is all that is lost."""
    grid = Fraction(1)
    while grid > Fraction(std) / 2**20:
        grid /= 2
    while 2 * grid <= Fraction(std) / 2**20:
        grid *= 2
    total = torch.tensor([0.0, 1.0, -3.25, 7.1, -0.001]) * std
    noisy = add_noise(total, std, RandomStream(KEY))
    assert noisy.dtype == torch.float32
    sums = zip(noisy.tolist(), total.tolist(), RandomStream(KEY).normal(5).tolist(), strict=True)
    for found, exact, normal in sums:
        place = Fraction(found) / grid
        assert place.denominator == 1
        lost = abs(place - (Fraction(exact) + Fraction(normal) * Fraction(std)) / grid)
        assert lost <= Fraction(1, 2) + Fraction(1, 10**6)


@pytest.mark.parametrize("std", [-1.0, math.nan])
def test_no_noise_is_asked_for_with_0_alone(std: float) -> None:
    """Less than none would be silence where noise was meant."""
    with pytest.raises(ValueError):
        add_noise(torch.ones(3), std, RandomStream(KEY))
