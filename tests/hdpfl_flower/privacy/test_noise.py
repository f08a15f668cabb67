"""The noise source: the cipher it claims, normals to the far tail, no repetition.

Every statistical bound is computed from FALSE_ALARM (keys are fixed wherever that is possible, so
that right code passes for good), and every check runs on a wrong source too, which must fail.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams, add_noise

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
        assert len(taken) == count
        return taken

    def fill(self, target: memoryview) -> None:
        target[:-15] = self.bytes(len(target) - 15)


# The cipher.


def test_the_stream_is_aes_256_in_counter_mode() -> None:
    """E(0, 0), E(0, 1) and E(0, 2): McGrew and Viega's GCM specification, test cases 13 and 14."""
    assert RandomStream(bytes(32)).bytes(48).hex() == (
        "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b"
        "cea7403d4d606b6e074ec5d3baf39d18"
    )


def test_the_stream_agrees_with_another_library_however_it_is_cut() -> None:
    aes = pytest.importorskip("Crypto.Cipher.AES")
    cipher = aes.new(KEY, aes.MODE_CTR, nonce=b"", initial_value=0)
    stream = RandomStream(KEY)
    parts = [stream.bytes(count) for count in (1, 15, 0, 17, 4096, 100_001)]
    assert b"".join(parts) == cipher.encrypt(bytes(sum(map(len, parts))))


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="key"):
        RandomStream(bytes(31))


# Normals.


def check_standard_normal(sample: np.ndarray) -> None:
    """Mean, variance, skewness, kurtosis and the whole distribution, each at FALSE_ALARM."""
    n = len(sample)
    assert abs(sample.mean()) < BOUND / math.sqrt(n)
    low, high = stats.chi2(n).isf([1 - FALSE_ALARM / 2, FALSE_ALARM / 2]) / n
    assert low < np.mean(sample**2) < high
    assert abs(stats.skew(sample)) < BOUND * math.sqrt(6 / n)
    assert abs(stats.kurtosis(sample)) < BOUND * math.sqrt(24 / n)
    assert stats.kstest(sample, "norm").pvalue > FALSE_ALARM


def test_normals_are_standard_normals() -> None:
    sample = RandomStream(KEY).normal(400_000).numpy()
    assert sample.dtype == np.float64
    check_standard_normal(sample)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda z: z * 2 / 3,
        lambda z: z * 1.5,
        lambda z: z * 1.01,
        lambda z: z + 0.01,
        lambda z: np.sign(z) * np.abs(z) ** 1.02,
        np.abs,
    ],
)
def test_the_check_rejects_other_distributions(wrong: Callable[[np.ndarray], np.ndarray]) -> None:
    with pytest.raises(AssertionError):
        check_standard_normal(wrong(RandomStream(KEY).normal(400_000).numpy()))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 16_383, 16_384, 16_385, 32_769])
def test_any_count_of_normals(count: int) -> None:
    sample = RandomStream(KEY).normal(count)
    assert sample.shape == (count,)
    assert torch.isfinite(sample).all()
    assert len(torch.unique(sample)) == count


def test_the_tail_goes_beyond_that_of_float32() -> None:
    """A radius beyond 5.77 has probability 2⁻²⁴, where float32 uniforms end.

    Words below 2²⁹ of 2⁵³ stand for just those; beyond, the radius² is exponential with mean 2.
    """
    draws = 100_000
    radii = np.frombuffer(RandomStream(KEY).bytes(8 * draws), dtype=np.int64) & (2**29 - 1)
    angles = np.zeros(draws, dtype=np.int64)  # cosine 1 to 1e-15: the normal is its radius
    blocks = np.stack([radii.reshape(-1, 8000 // 4), angles.reshape(-1, 8000 // 4)], axis=1)
    tail = np.concatenate(
        [
            Words(block.ravel()).normal(2 * block.shape[1]).numpy()[: block.shape[1]]
            for block in blocks
        ]
    )
    assert tail.min() > 5.76
    assert stats.kstest(tail**2 - 48 * math.log(2), "expon", (0, 2)).pvalue > FALSE_ALARM
    farthest = Words(np.array([0, 2**53 - 1])).normal(2)
    assert farthest[0] == pytest.approx(math.sqrt(106 * math.log(2)))  # 8.57
    assert torch.isfinite(Words(np.array([-1, -1])).normal(2)).all()


def test_the_two_normals_of_a_pair_are_independent() -> None:
    """Box and Muller's pairs share a radius: their values and their squares must not correlate."""
    one, other = RandomStream(KEY).normal(16_384).reshape(2, -1).numpy()
    bound = BOUND / math.sqrt(len(one))
    assert abs(np.corrcoef(one, other)[0, 1]) < bound
    assert abs(np.corrcoef(one**2, other**2)[0, 1]) < bound


# No repetition.

DRAWS = 4_000


def check_unrelated(vectors: Sequence[np.ndarray]) -> None:
    """Every two vectors correlate by less than 6/√d; by chance 2·Φ(−6) = 2e-9 of pairs do not."""
    correlation = np.corrcoef(np.array(vectors)) - np.eye(len(vectors))
    assert np.abs(correlation).max() < 6 / math.sqrt(len(vectors[0]))


FORKS = """
import os, sys
from hdpfl_flower.privacy.noise import RandomStream, ReleaseStreams

inherited = RandomStream(bytes(32))

def draw():
    return {expression}.normal({draws}).numpy().tobytes()

def in_a_fork():
    reader, writer = os.pipe()
    if not os.fork():
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(draw())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read()

for values in (in_a_fork(), in_a_fork(), draw()):
    sys.stdout.buffer.write(values)
"""


def in_new_process(code: str) -> np.ndarray:
    """Return what ``code`` writes; one thread, because a fork does not inherit a pool of them."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    return np.frombuffer(run.stdout, dtype=np.float64)


def of_one_process(*expressions: str) -> np.ndarray:
    """Return what each expression draws in one new process, shape ``(expressions, draws)``."""
    return in_new_process(
        "import sys, torch; from hdpfl_flower.privacy.noise import ReleaseStreams\n"
        f"for values in ({', '.join(expressions)}):\n"
        "    sys.stdout.buffer.write(values.numpy().tobytes())"
    ).reshape(len(expressions), -1)


def of_forks(expression: str) -> np.ndarray:
    values = in_new_process(FORKS.format(expression=expression, draws=DRAWS))
    return values.reshape(3, DRAWS)


def test_releases_rounds_and_streams_are_unrelated() -> None:
    releases = [ReleaseStreams.fresh() for _ in range(10)]
    streams = [stream for release in releases for stream in (release.sampling, release.noise)]
    check_unrelated([stream.normal(DRAWS).numpy() for stream in streams])
    again = [stream.normal(DRAWS).numpy() for stream in streams[:2]]
    check_unrelated([*again, *(stream.normal(DRAWS).numpy() for stream in streams[:2])])


@pytest.mark.slow
def test_forked_processes_are_unrelated() -> None:
    check_unrelated(of_forks("ReleaseStreams.fresh().noise"))
    with pytest.raises(AssertionError):  # the mutant: one stream made before the fork
        check_unrelated(of_forks("inherited"))


@pytest.mark.slow
def test_new_processes_are_unrelated() -> None:
    """A deployed site is a new process for every message."""
    ours = f"ReleaseStreams.fresh().noise.normal({DRAWS})"
    mutant = f"torch.empty({DRAWS}, dtype=torch.float64).normal_(generator=torch.Generator())"
    one, other = of_one_process(ours, mutant), of_one_process(ours, mutant)
    check_unrelated([one[0], other[0]])
    with pytest.raises(AssertionError):
        check_unrelated([one[1], other[1]])


def test_a_fresh_release_draws_two_keys_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []
    urandom = os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: drawn.append(urandom(count)) or drawn[-1])
    torch.manual_seed(0)
    release = ReleaseStreams.fresh()
    assert [len(key) for key in drawn] == [32, 32]
    assert release.sampling.bytes(64) == RandomStream(drawn[0]).bytes(64)
    assert release.noise.bytes(64) == RandomStream(drawn[1]).bytes(64)


def test_simulated_streams_repeat_and_differ_in_everything() -> None:
    release = (1, "3", 7, "update")
    others = [
        (2, "3", 7, "update"),
        (1 + 2**32, "3", 7, "update"),
        (1, "4", 7, "update"),
        (1, "37", 7, "update"),
        (1, "", 37, "update"),
        (1, "3", 8, "update"),
        (1, "3", 77, "update"),
        (1, "3", 7, "bits"),
        (-1, "3", 7, "update"),
    ]
    one, same = (ReleaseStreams.simulated(*release) for _ in range(2))
    assert one.noise.bytes(1000) == same.noise.bytes(1000)
    assert one.sampling.bytes(1000) == same.sampling.bytes(1000)
    streams = [ReleaseStreams.simulated(*at) for at in (release, *others)]
    check_unrelated(
        [s.normal(DRAWS).numpy() for release in streams for s in (release.sampling, release.noise)]
    )


# Noise on a sum.


def check_noise_std(noise: np.ndarray, std: float) -> None:
    check_standard_normal(noise / std)


def check_on_grid(noisy: torch.Tensor, std: float) -> None:
    """Every value is a multiple of σ·2⁻²⁰ rounded down to a power of two, whatever the sum."""
    grid = 2.0 ** (math.floor(math.log2(std)) - 20)
    places = noisy.double().numpy() / grid
    assert (places == np.rint(places)).all()


@pytest.mark.parametrize("std", [3e-4, 0.7, 1.0, 7.3, 4096.0, 5e7])
def test_noise_has_its_std_and_lies_on_the_public_grid(std: float) -> None:
    total = torch.linspace(-3, 5, 200_000) * std
    noisy = add_noise(total, std, RandomStream(KEY))
    assert noisy.dtype == torch.float32
    noise = (noisy.double() - total.double()).numpy()
    check_noise_std(noise, std)
    check_on_grid(noisy, std)
    exact = total.double() + std * RandomStream(KEY).normal(200_000)
    error = (noisy.double() - exact).abs()
    assert (error <= std * 2**-21 + exact.abs() * 2**-24).all()
    for wrong in (2 / 3, 1.5):
        with pytest.raises(AssertionError):
            check_noise_std(wrong * noise, std)
    with pytest.raises(AssertionError):  # the mutant that skips the rounding
        check_on_grid((total.double() + std * RandomStream(KEY).normal(200_000)).float(), std)


@pytest.mark.parametrize("size", [0, 1, 5, 16_385])
def test_noise_of_any_size(size: int) -> None:
    total = torch.ones(size)
    noisy = add_noise(total, 2.0, RandomStream(KEY))
    assert noisy.shape == (size,)
    assert (noisy != 1).all()
    assert (total == 1).all()
    assert add_noise(total, 0.0, RandomStream(KEY)) is total


def test_successive_sums_get_different_noise() -> None:
    stream, zeros = RandomStream(KEY), torch.zeros(DRAWS)
    check_unrelated([add_noise(zeros, 1.0, stream).numpy() for _ in range(3)])
