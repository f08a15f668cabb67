"""Masks of a round: they vanish in the sum of all sites, to the bit, and in no other sum."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower.shared_noise import masks
from hdpfl_flower.shared_noise.masks import add_masks, pair_secret, public_of

Part = npt.NDArray[np.uint64]
REQUEST = hashlib.sha256(b"terms, round, model and set").hexdigest()
KEYS = [hashlib.sha256(b"key %d" % number).digest() for number in range(12)]
SECRETS = {
    (own, other): pair_secret(KEYS[own], public_of(KEYS[other]))
    for own in range(len(KEYS))
    for other in range(len(KEYS))
    if own != other
}
SMALL_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
"""Points of order 1, 2, 4 and 8 (https://cr.yp.to/ecdh.html#validate)."""


def masked(numbers: list[int], own: int, values: Part, request: str = REQUEST) -> Part:
    part = values.copy()
    secrets = {other: SECRETS[own, other] for other in numbers if other != own}
    add_masks(part, secrets, own, request)
    return part


def drawn(seed: int, count: int, size: int) -> Part:
    return np.random.default_rng(seed).integers(0, 2**64, (count, size), np.uint64)


@settings(max_examples=60)
@given(
    st.sets(st.integers(0, 11), min_size=2).flatmap(lambda s: st.permutations(sorted(s))),
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
)
def test_the_sum_is_that_of_the_integers_in_the_clear(
    numbers: list[int], size: int, seed: int
) -> None:
    """Any set, in any order, of any size."""
    values = drawn(seed, len(numbers), size)
    total = np.zeros(size, np.uint64)
    for own, part in zip(numbers, values, strict=True):
        total += masked(numbers, own, part)
    clear = [sum(column) % 2**64 for column in values.T.tolist()]
    assert total.tolist() == clear


def test_a_mask_longer_than_a_piece_vanishes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "_AT_ONCE", 7)
    values = drawn(1, 3, 100)
    parts = [masked([0, 1, 2], own, values[own]) for own in range(3)]
    np.testing.assert_array_equal(sum(parts), values.sum(0))
    monkeypatch.undo()
    np.testing.assert_array_equal(parts[0], masked([0, 1, 2], 0, values[0]))


def test_each_request_has_masks_of_its_own() -> None:
    """Parts of two requests differ by more than their values: no mask hides two vectors."""
    values = drawn(2, 1, 50)[0]
    other = hashlib.sha256(b"the next round").hexdigest()
    first, second = (masked([0, 1, 2], 0, values, request) for request in (REQUEST, other))
    assert (first != second).all()
    sums = masked([0, 1], 0, values) + masked([0, 1], 1, values, other)
    assert (sums != 2 * values).all(), "unlike requests have a sum"


@pytest.mark.parametrize("left_out", [0, 1, 3])
def test_a_subset_has_no_sum(left_out: int) -> None:
    numbers = [0, 1, 2, 3]
    values = drawn(3, 4, 200)
    rest = [own for own in numbers if own != left_out]
    total = sum(masked(numbers, own, values[own]) for own in rest)
    assert (total != values[rest].sum(0)).all()


def test_a_masked_part_looks_uniform() -> None:
    """χ² of its bytes, and of its difference from the values, with a false alarm of 1e-6 each."""
    values = np.zeros(50_000, np.uint64)
    for part in (masked([0, 1], 0, values), masked([3, 5, 7], 5, values)):
        counts = np.bincount(part.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6


def test_each_pair_has_a_mask_of_its_own() -> None:
    """Also a site with itself under another number: the pair is in the key's context."""
    part, zeros = {}, np.zeros(40, np.uint64)
    for own, other in ((0, 1), (0, 2), (1, 2), (2, 5)):
        part[own, other] = zeros.copy()
        add_masks(part[own, other], {other: SECRETS[0, 1]}, own, REQUEST)
    assert len({mask.tobytes() for mask in part.values()}) == 4


def test_both_sites_of_a_pair_compute_one_secret() -> None:
    for _ in range(5):
        first, second = os.urandom(32), os.urandom(32)
        secret = pair_secret(first, public_of(second))
        assert secret == pair_secret(second, public_of(first))
        assert secret != pair_secret(first, public_of(os.urandom(32)))


def test_the_secret_is_that_of_the_standard() -> None:
    """RFC 7748, section 6.1."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    public = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert pair_secret(alice, bytes.fromhex(public)).hex() == secret


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_keys_of_small_order_are_refused(key: str) -> None:
    """With one, the secret would be zeros, whichever the private key."""
    with pytest.raises(ValueError, match="shared key"):
        pair_secret(KEYS[0], bytes.fromhex(key))
