"""Vectors rounded to a coarse grid: unbiased, bounded, and read with distrust."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable

import numpy as np
import pytest

from hdpfl_flower import quantize
from hdpfl_flower.errors import WireError
from hdpfl_flower.quantize import (
    BFLOAT16,
    BLOCK,
    INT8,
    LARGEST_ERROR,
    Form,
    read_rounded,
    round_vector,
    rounded_bytes,
    rounded_numbers,
)

FORMS: tuple[Form, ...] = (BFLOAT16, INT8)
MANY = 64_000


def normal(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def draws(seed: int = 1) -> Callable[[int], bytes]:
    return np.random.default_rng(seed).bytes


def there_and_back(values: np.ndarray, form: Form, seed: int = 1) -> np.ndarray:
    return read_rounded(round_vector(values, form, draws(seed)), len(values), form)


def steps_of(values: np.ndarray, form: Form) -> np.ndarray:
    """Return the distance between the neighbours of each number, computed another way."""
    if form == BFLOAT16:
        return 2.0 ** (np.frexp(values.astype(np.float64))[1] - 8)
    steps = []
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK].astype(np.float64)
        least = np.abs(block).max() / 127
        unit = 2.0 ** (math.frexp(least)[1] - 8)
        steps += [math.ceil(least / unit) * unit] * len(block)
    return np.array(steps)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 650, quantize._CHUNK + 70])
def test_every_number_becomes_a_neighbour_on_its_grid(form: Form, size: int) -> None:
    values = normal(size)
    data = round_vector(values, form, draws())
    read, steps = read_rounded(data, size, form), steps_of(values, form)
    assert len(data) == rounded_bytes(size, form)
    assert rounded_numbers(len(data), form) == size
    assert (np.abs(read - values.astype(np.float64)) < steps).all()
    multiples = read / steps
    np.testing.assert_array_equal(multiples, np.round(multiples))


@pytest.mark.parametrize("form", FORMS)
def test_what_lies_on_the_grid_stays_there(form: Form) -> None:
    read = there_and_back(normal(650), form)
    if form == INT8:
        read = np.random.default_rng(0).integers(-127, 128, 650).astype(np.float32) / 4
        read[::BLOCK] = 127 / 4
    for seed in range(5):
        np.testing.assert_array_equal(there_and_back(read, form, seed), read)
    masked = np.where(np.arange(650) % 3, normal(650), np.float32(0))
    assert not there_and_back(masked, form)[::3].any()
    assert not there_and_back(np.zeros(70, np.float32), form).any()


def is_unbiased(form: Form, draw: Callable[[int], bytes], inside: float, sign: int) -> bool:
    """Return whether numbers at this place between two neighbours have that mean.

    By Hoeffding's inequality a right one fails with probability 1e-9.
    """
    step = 1 / 128 if form == BFLOAT16 else 1.0
    first = 1.5 if form == BFLOAT16 else 40.0
    values = np.full(MANY, sign * (first + inside * step), np.float32)
    if form == INT8:
        values[::BLOCK] = 127.0  # so that the scale is 1
    read = read_rounded(round_vector(values, form, draw), MANY, form)
    kept = np.arange(MANY) % BLOCK != 0
    mean = float(np.mean((np.abs(read[kept]) - first) / step))
    return abs(mean - inside) < math.sqrt(math.log(2e9) / (2 * kept.sum()))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("inside", [0.125, 0.5, 0.8125])
@pytest.mark.parametrize("form", FORMS)
def test_rounding_is_unbiased(form: Form, inside: float, sign: int) -> None:
    assert is_unbiased(form, draws(), inside, sign)
    # The same check refuses what is not: always down, always up, and a tenth of a step off.
    assert not is_unbiased(form, bytes, inside, sign)
    assert not is_unbiased(form, lambda count: b"\xff" * count, inside, sign)
    biased = np.random.default_rng(2)

    def off(count: int) -> bytes:
        words = biased.integers(0, 2**16, count // 2) * 0.9
        return words.astype("<u2").tobytes()

    assert not is_unbiased(form, off, inside, sign)


def test_a_number_below_a_power_of_two_is_rounded_up_to_it() -> None:
    value = np.full(MANY, 2 - 2.0**-9, np.float32)  # three quarters of the way up
    read = there_and_back(value, BFLOAT16)
    assert set(np.unique(read)) == {np.float32(2 - 2.0**-7), np.float32(2)}
    assert abs(float(read.mean()) - float(value[0])) < 2.0**-7 * math.sqrt(
        math.log(2e9) / (2 * MANY)
    )


@pytest.mark.parametrize(("form", "share"), [(BFLOAT16, 5.5e-6), (INT8, 7.2e-5)])
def test_the_added_power_of_normal_numbers(form: Form, share: float) -> None:
    """Stated in the docs; within 3 %, more than five standard deviations of 640,000 numbers."""
    values = normal(10 * MANY).astype(np.float64)
    error = there_and_back(values.astype(np.float32), form) - values
    found = float(np.mean(error**2) / np.mean(values**2))
    assert found == pytest.approx(share, rel=0.03)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["one large", "half a step", "normal"])
def test_the_largest_error_is_the_largest(form: Form, kind: str) -> None:
    """In the mean of the square; over 1,000 blocks chance adds less than 2 % to the root."""
    values = normal(1000 * BLOCK)
    if kind == "one large":
        values = np.full(1000 * BLOCK, 0.5 / 127, np.float32)
        values[::BLOCK] = 1
    if kind == "half a step":
        values = np.full(1000 * BLOCK, 1 + 2.0**-8, np.float32)
    error = np.linalg.norm(there_and_back(values, form) - values) / np.linalg.norm(values)
    assert error <= 1.02 * LARGEST_ERROR[form]
    if (form, kind) in ((INT8, "one large"), (BFLOAT16, "half a step")):
        assert error >= 0.95 * LARGEST_ERROR[form]  # no looser than it need be


@pytest.mark.parametrize("form", FORMS)
def test_numbers_at_the_ends_of_float32(form: Form) -> None:
    tiny = np.array([2.0**-149, -(2.0**-140), 0, 2.0**-126], np.float32)
    assert np.isfinite(there_and_back(tiny, form)).all()
    large = np.full(3, 2.0**100, np.float32)
    np.testing.assert_allclose(there_and_back(large, form), large, rtol=2.0**-7)
    largest = np.full(3, np.finfo(np.float32).max)
    with contextlib.suppress(WireError):  # rounded up beyond it, or not: read, or refused
        assert np.isfinite(there_and_back(largest, form)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_is_sent_as_what_is_refused(form: Form, value: float) -> None:
    """Never as a number: a NaN plus random bits could carry into the sign."""
    values = normal(130)
    values[77] = value
    for seed in range(20):
        with pytest.raises(WireError, match="finite"):
            there_and_back(values, form, seed)
    quiet = values.view(np.uint32)
    quiet[77] = 0x7FFFFFFF
    with pytest.raises(WireError, match="finite"):
        there_and_back(values, form)


def test_the_bytes_are_the_same_on_every_machine() -> None:
    digests = {
        form: hashlib.sha256(round_vector(normal(650), form, draws())).hexdigest()[:12]
        for form in FORMS
    }
    assert digests == {BFLOAT16: "30ecb42015b8", INT8: "2fd2bd9d35c0"}


def halves(*numbers: float) -> bytes:
    return (np.array(numbers, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


INT8_GOOD = halves(0.5, 0.0) + bytes([1] * 63 + [0x81]) + bytes(6)
MALFORMED: dict[str, tuple[Form, int, bytes]] = {
    "int8: nothing": (INT8, 70, b""),
    "int8: a byte less": (INT8, 70, INT8_GOOD[:-1]),
    "int8: a byte more": (INT8, 70, INT8_GOOD + b"\0"),
    "int8: no scales": (INT8, 70, bytes(70)),
    "int8: one scale for two blocks": (INT8, 70, halves(0.5) + bytes(70)),
    "int8: a negative scale": (INT8, 70, halves(-0.5, 0) + INT8_GOOD[4:]),
    "int8: a scale of -0": (INT8, 70, halves(0.5, -0.0) + INT8_GOOD[4:]),
    "int8: an infinite scale": (INT8, 70, halves(np.inf, 0) + INT8_GOOD[4:]),
    "int8: a scale of NaN": (INT8, 70, halves(np.nan, 0) + INT8_GOOD[4:]),
    "int8: an infinite scale of zeros": (INT8, 70, halves(0.5, np.inf) + INT8_GOOD[4:]),
    "int8: a number beyond the largest": (INT8, 70, INT8_GOOD[:4] + b"\x80" + INT8_GOOD[5:]),
    "int8: a number in a block of zeros": (INT8, 70, INT8_GOOD[:-1] + b"\1"),
    "int8: a product beyond float32": (INT8, 70, halves(3e38, 0) + b"\x7f" + INT8_GOOD[5:]),
    "bfloat16: nothing": (BFLOAT16, 3, b""),
    "bfloat16: a byte less": (BFLOAT16, 3, bytes(5)),
    "bfloat16: a byte more": (BFLOAT16, 3, bytes(7)),
    "bfloat16: float32": (BFLOAT16, 3, bytes(12)),
    "bfloat16: NaN": (BFLOAT16, 3, halves(1, np.nan, 1)),
    "bfloat16: infinite": (BFLOAT16, 3, halves(1, np.inf, 1)),
    "bfloat16: minus infinite": (BFLOAT16, 3, halves(1, -np.inf, 1)),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_bytes_are_refused_in_constant_words(case: str) -> None:
    form, size, data = MALFORMED[case]
    with pytest.raises(WireError) as error:
        read_rounded(data, size, form)
    assert not any(character.isdigit() for character in str(error.value))


def test_the_same_builder_makes_good_bytes() -> None:
    """The cases above fail for what they change, not for how they are built."""
    read = read_rounded(INT8_GOOD, 70, INT8)
    assert read.tolist() == [0.5] * 63 + [-63.5] + [0.0] * 6
    assert read_rounded(halves(1, -2, 0.5), 3, BFLOAT16).tolist() == [1, -2, 0.5]
