"""Poisson batches: every record in every batch by a trial of its own, never above its probability.

Every statistical bound is computed from FALSE_ALARM (the key is fixed, so that right code passes
for good), and the check runs on wrong samplers too, which must fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hdpfl_flower.privacy import noise
from hdpfl_flower.privacy.noise import RandomStream, add_noise
from hdpfl_tools.simulation.stacked_noise import add_noises

FALSE_ALARM = 1e-6
"""Chance that one statistical check below rejects right code."""
BOUND = stats.norm.isf(FALSE_ALARM / 2)  # two-sided, in standard errors: 4.89
KEY = bytes(range(32))


class Words(RandomStream):
    """A stream that yields the words it is given, to reach corners that chance does not."""

    def __init__(self, words: np.ndarray) -> None:
        self._left = words.tobytes()

    def bytes(self, count: int) -> bytes:
        taken, self._left = self._left[:count], self._left[count:]
        return taken


RECORDS, TRIALS, Q = 60, 20_000, 0.137
Sampler = Callable[[], np.ndarray]


def check_poisson(sample: Sampler) -> None:
    """Counts of inclusion, batch sizes and pairs are those of independent trials of ``Q``."""
    included = np.zeros((TRIALS, RECORDS))
    for trial in range(TRIALS):
        included[trial, sample()] = 1
    expected, variance = TRIALS * Q, TRIALS * Q * (1 - Q)
    counts = ((included.sum(0) - expected) ** 2 / variance).sum()
    assert FALSE_ALARM < stats.chi2(RECORDS).sf(counts) < 1 - FALSE_ALARM
    # Batch sizes: bins of at least 50 expected, the tails together.
    sizes = np.bincount(included.sum(1).astype(int), minlength=RECORDS + 1)
    expected_sizes = TRIALS * stats.binom(RECORDS, Q).pmf(np.arange(RECORDS + 1))
    common = expected_sizes >= 50
    seen = np.append(sizes[common], sizes[~common].sum())
    wanted = np.append(expected_sizes[common], expected_sizes[~common].sum())
    assert stats.chisquare(seen, wanted).pvalue > FALSE_ALARM
    # Covariance of every two records: 0, with standard error Q(1 − Q)/√TRIALS.
    centred = included - Q
    covariance = (centred.T @ centred / TRIALS)[np.triu_indices(RECORDS, 1)]
    scores = covariance / (Q * (1 - Q)) * math.sqrt(TRIALS)
    assert FALSE_ALARM < stats.chi2(len(scores)).sf((scores**2).sum()) < 1 - FALSE_ALARM
    assert abs(scores.mean()) < BOUND / math.sqrt(len(scores))


def shuffled() -> Sampler:
    """The mutant of most training loops: batches of one size, cut from a shuffled epoch."""
    generator, size, queue = np.random.default_rng(0), round(RECORDS * Q), []

    def sample() -> np.ndarray:
        if len(queue) < size:
            queue[:] = generator.permutation(RECORDS).tolist()
        batch, queue[:] = queue[:size], queue[size:]
        return np.array(batch)

    return sample


def test_batches_are_poisson() -> None:
    stream = RandomStream(KEY)
    check_poisson(lambda: stream.bernoulli(RECORDS, Q))


@pytest.mark.parametrize("mutant", ["shuffled", "fixed size", "two thirds", "half more", "pairs"])
def test_the_check_rejects_other_batches(mutant: str) -> None:
    generator, stream = np.random.default_rng(0), RandomStream(KEY)
    half = RECORDS // 2
    samplers: dict[str, Sampler] = {
        "shuffled": shuffled(),
        "fixed size": lambda: generator.choice(RECORDS, round(RECORDS * Q), replace=False),
        "two thirds": lambda: stream.bernoulli(RECORDS, Q * 2 / 3),
        "half more": lambda: stream.bernoulli(RECORDS, Q * 1.5),
        "pairs": lambda: np.add.outer([0, half], stream.bernoulli(half, Q)).ravel(),
    }
    with pytest.raises(AssertionError):
        check_poisson(samplers[mutant])


@given(st.floats(0, 1, exclude_max=True, allow_subnormal=False))
def test_a_probability_is_rounded_down(probability: float) -> None:
    """The greatest word that succeeds is the last below q·2³²: never more than is accounted."""
    threshold = int(probability * 2**32)
    assert threshold / 2**32 <= probability
    words = [0, threshold - 1, threshold, min(threshold + 1, 2**32 - 1), 2**32 - 1]
    included = Words(np.array(words).clip(0).astype(np.uint32)).bernoulli(5, probability)
    expected = [place for place, word in enumerate(words) if max(word, 0) < threshold]
    assert included.tolist() == expected


def test_probabilities_at_the_edge() -> None:
    stream = RandomStream(KEY)
    assert stream.bernoulli(1000, 1.0).tolist() == list(range(1000))
    assert stream.bernoulli(100_000, 2**-33).size == 0
    below_one = math.nextafter(1, 0)
    last, first = np.array([2**32 - 1], np.uint32), np.array([2**32 - 2], np.uint32)
    assert Words(last).bernoulli(1, below_one).size == 0
    assert Words(first).bernoulli(1, below_one).size == 1
    for probability in (0.5, 1.0):
        assert stream.bernoulli(0, probability).size == 0
    drawn = stream.bernoulli(100_000, 0.3)
    assert (np.diff(drawn) > 0).all()
    assert drawn.dtype == np.int64


# --- noise of several calls in one pass of its stream: the bits, and the stream, of call by call


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
