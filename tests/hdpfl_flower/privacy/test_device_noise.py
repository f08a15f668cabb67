"""Noise made on another device: the cipher's bits, a transform in float64, no key used twice."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from hdpfl_flower.linalg.chacha20 import KEY, key_stream, keys_of
from hdpfl_flower.privacy import noise
from hdpfl_flower.privacy.noise import RandomStream, add_noise, normals_of
from hdpfl_tools.simulation.stacked_noise import add_noises
from tests.hdpfl_flower.engines.fake_gpu import NAME, fake_gpu
from tests.hdpfl_flower.privacy.test_noise import check_standard_normal

KEYS = [bytes(range(first, first + KEY)) for first in (0, 200, 7)]


def cipher(key: bytes, first: int, blocks: int) -> bytes:
    """Return blocks of OpenSSL's ChaCha20."""
    start = first.to_bytes(4, "little") + bytes(12)
    return Cipher(algorithms.ChaCha20(key, start), None).encryptor().update(bytes(64 * blocks))


def device_normals(keys: list[bytes], count: int) -> np.ndarray:
    with fake_gpu():
        streams = [RandomStream(key) for key in keys]
        return normals_of(streams, count, torch.device(NAME)).cpu().numpy()


def test_a_million_words_are_those_of_another_library() -> None:
    blocks = 1_000_000 // 16
    words = key_stream(keys_of(KEYS[0]), 0, blocks).numpy()
    assert np.array_equal(
        words[0].view(np.uint8), np.frombuffer(cipher(KEYS[0], 0, blocks), np.uint8)
    )


@pytest.mark.parametrize(("first", "blocks"), [(0, 1), (9, 5), (2**31 - 2, 4), (2**32 - 3, 3)])
def test_each_key_has_its_own_stream_from_any_block(first: int, blocks: int) -> None:
    words = key_stream(keys_of(b"".join(KEYS)), first, blocks).numpy()
    expected = [cipher(key, first, blocks) for key in KEYS]
    assert [row.tobytes() for row in words] == expected


def test_a_stream_does_not_start_anew() -> None:
    with pytest.raises(ValueError, match="blocks"):
        key_stream(keys_of(KEYS[0]), 2**32 - 1, 2)


@pytest.mark.parametrize("count", [1, 2, 7, 64, 129])
def test_normals_are_box_mullers(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out: a piece of w normals takes ⌈w/2⌉ radii, then as many angles, of whole blocks."""
    monkeypatch.setattr(noise, "_ON_DEVICE", 50)
    for key, found in zip(KEYS, device_normals(KEYS, count), strict=True):
        own, first, expected = RandomStream(key).bytes(KEY), 0, []
        for start in range(0, count, 50):
            width = min(50, count - start)
            half = (width + 1) // 2
            blocks = math.ceil(16 * half / 64)
            words = np.frombuffer(cipher(own, first, blocks), np.uint64)[: 2 * half]
            uniform = ((words & np.uint64(2**53 - 1)).astype(np.float64) + 1) / 2**53
            radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
            expected += [*np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:width]]
            first += blocks
        assert np.abs(found - np.array(expected)).max() < 1e-14


def test_they_are_standard_normals() -> None:
    check_standard_normal(device_normals(KEYS[:1], 200_000)[0])


def test_no_call_repeats_another_ones_noise() -> None:
    """A key a call and a stream, of which no other call's batches or noise is made."""
    with fake_gpu():
        stream, device = RandomStream(KEYS[0]), torch.device(NAME)
        first, second = (stream.normal(1000, device).cpu().numpy() for _ in range(2))
        assert stream.position == 2 * KEY
        third = RandomStream(KEYS[0], KEY).normal(1000, device).cpu().numpy()
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(1000)
    assert np.array_equal(second, third)  # an interrupted simulation goes on


@pytest.mark.parametrize("at_once", [1, 7, 40, 10**6])
def test_noise_ahead_has_the_same_bits(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_ON_DEVICE", at_once)
    monkeypatch.setattr(noise, "_CALLS", 3)
    ahead, alone = RandomStream(KEYS[0]), RandomStream(KEYS[0])
    with fake_gpu():
        device = torch.device(NAME)
        ahead.draw_ahead(13, 4)
        assert ahead.position == 0  # nothing before it is asked for
        for _ in range(5):  # one more than was announced
            assert torch.equal(ahead.normal(13, device).cpu(), alone.normal(13, device).cpu())
    assert ahead.position == alone.position == 5 * KEY


def test_a_sum_is_noised_there_and_lies_on_the_grid() -> None:
    totals = torch.arange(3 * 1001, dtype=torch.float32).view(3, 1001) / 7
    stds = (0.4, 0.0, 3.0)
    with fake_gpu():
        sums = totals.to(NAME)
        alone = [
            add_noise(row, std, RandomStream(key)).cpu().numpy()
            for row, std, key in zip(sums.clone(), stds, KEYS, strict=True)
        ]
        add_noises(sums, stds, [RandomStream(key) for key in KEYS])
        assert np.array_equal(sums.cpu().numpy(), alone)
    assert np.array_equal(alone[1], totals[1].numpy())
    for row, std, total in zip(alone, stds, totals.numpy(), strict=True):
        if std:
            grid = 2.0 ** (math.floor(math.log2(std)) - 20)
            assert np.array_equal(np.round(row / grid) * grid, row)
            assert abs((row - total).std() / std - 1) < 5 / math.sqrt(2 * 1001)


# On a GPU.


@pytest.mark.gpu
def test_a_gpu_makes_the_same_stream_and_normals() -> None:
    """The cipher to the bit; the normals to the last bits of logarithm, sine and cosine."""
    assert torch.cuda.is_available(), "this test needs a GPU that torch can use"
    keys, gpu = keys_of(b"".join(KEYS)), torch.device("cuda")
    for first, blocks in ((0, 62_500), (2**32 - 3, 3)):
        words = key_stream(keys.to(gpu), first, blocks).cpu()
        assert torch.equal(words, key_stream(keys, first, blocks))
    found = normals_of([RandomStream(key) for key in KEYS], 10_001, gpu).cpu().numpy()
    assert np.abs(found - device_normals(KEYS, 10_001)).max() < 1e-13
