"""Noise of several calls in one pass of its stream: the bits, and the stream, of call by call."""

from __future__ import annotations

import pytest
import torch

from hdpfl_flower.privacy import noise
from hdpfl_flower.privacy.noise import RandomStream, add_noise, add_noises

KEY = bytes(range(32))
BLOCK = 16_384


@pytest.mark.parametrize("calls", [1, 2, 7, 12])
@pytest.mark.parametrize("count", [1, 2, 5, 13, 14, 650, 651, 7850, BLOCK, BLOCK + 3])
def test_numbers_drawn_ahead_have_the_same_bits(count: int, calls: int) -> None:
    ahead, alone = RandomStream(KEY), RandomStream(KEY)
    ahead.draw_ahead(count, calls)
    for _ in range(calls):
        assert torch.equal(ahead.normal(count), alone.normal(count))
    assert ahead.position == alone.position
    assert torch.equal(ahead.normal(count), alone.normal(count))  # beyond what was announced
    assert ahead.bytes(16) == alone.bytes(16)


def test_numbers_are_drawn_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_AHEAD", 20)
    stream, alone = RandomStream(KEY), RandomStream(KEY)
    stream.draw_ahead(6, 5)
    assert stream.position == 0  # nothing before it is asked for
    taken = []
    for _ in range(5):
        assert torch.equal(stream.normal(6), alone.normal(6))
        taken.append(stream.position)
    assert taken == [144, 144, 144, 240, 240]  # three calls, then the two that are left


def test_a_call_for_another_count_takes_other_bytes_and_returns_no_number_twice() -> None:
    stream = RandomStream(KEY)
    stream.draw_ahead(4, 3)
    found = [stream.normal(4), stream.normal(2), stream.normal(4), stream.normal(4)]
    found.append(stream.normal(4))
    numbers = torch.cat(found).tolist()
    assert len(set(numbers)) == len(numbers) == 18
    assert stream.position == 3 * 32 + 16 + 32


def test_numbers_that_a_caller_changes_are_its_own() -> None:
    stream, alone = RandomStream(KEY), RandomStream(KEY)
    stream.draw_ahead(5, 3)
    for _ in range(3):
        assert torch.equal(stream.normal(5).mul_(2), alone.normal(5) * 2)


def test_what_was_announced_last_counts() -> None:
    stream, alone = RandomStream(KEY), RandomStream(KEY)
    stream.draw_ahead(4, 0)
    assert torch.equal(stream.normal(4), alone.normal(4))
    stream.draw_ahead(4, 2)
    stream.draw_ahead(3, 2)
    for count in (4, 3, 3, 4):
        assert torch.equal(stream.normal(count), alone.normal(count))
    assert stream.position == alone.position


# The noise of several releases.


@pytest.mark.parametrize("count", [1, 2, 13, 650, 7851, BLOCK, BLOCK + 3])
def test_releases_together_have_equal_bits(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_AHEAD", 3 * count)  # some releases at a time
    keys = [bytes([number]) * 32 for number in range(7)]
    stds = [0.3, 1.0, 0.0, 7e-5, 1.7, 0.0, 1e6]
    totals = torch.randn(7, count, generator=torch.Generator().manual_seed(1))
    together, alone = [RandomStream(key) for key in keys], [RandomStream(key) for key in keys]
    found = totals.clone()
    add_noises(found, stds, together)
    for row, (std, stream) in enumerate(zip(stds, alone, strict=True)):
        assert torch.equal(found[row], add_noise(totals[row], std, stream))
        assert together[row].position == stream.position
    assert torch.equal(found[2], totals[2])
    quiet = totals.clone()
    add_noises(quiet, [0.0] * 7, together)
    assert torch.equal(quiet, totals)
    assert together[0].position == alone[0].position


@pytest.mark.parametrize("std", [float("nan"), -1.0])
def test_a_scale_that_is_none_is_an_error_and_not_no_noise(std: float) -> None:
    for stds in ([1.0, std], [0.0, std]):
        with pytest.raises(ValueError, match=r"math domain error|NaN|expected a"):
            add_noises(torch.zeros(2, 3), stds, [RandomStream(KEY), RandomStream(KEY)])
