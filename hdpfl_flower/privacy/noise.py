"""Cryptographic randomness of privacy: AES-CTR and ChaCha20 streams, float64 normals.

torch's generators start from one fixed seed in every process and use only 32 bits of it, and
float32 normals are cut at 5.8 σ; neither may noise a release
(docs/project/decisions.md). Here each release draws two fresh 256-bit keys from the operating
system, one for the batches and one for the noise.

Noise for a sum on another device is made there, by ChaCha20 under a key that each call takes from
the release's stream: of it and of the batches the bits are those of the CPU's arithmetic. The
transform is the same in float64; its logarithms and cosines, so the normals' last bits, are the
device's own.

Simulation alone may derive the keys from a seed; then no record is protected, and every report says
so.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from hdpfl_flower.system.devices import moved

if TYPE_CHECKING:  # imported where normals are drawn: a second that many commands need not wait
    import torch

_BLOCK = 16_384
"""Normals made at once: the working set stays in the cache of a core."""
_AHEAD = 65_536
"""Normals of several calls that are made at once: half a megabyte."""
_ON_DEVICE = 2**23
"""Normals made at once on another device: 64 MiB and some copies; fewer take as many launches."""
_CALLS = 64
"""Calls drawn at once there at most: each takes a key, and their launches cost no more to save."""
_SLACK = 15
"""Bytes that the cipher asks for behind what it writes: a block of it but one."""
_ZEROS = memoryview(bytes(8 * _AHEAD))
"""Least bytes encrypted at once."""
_GRID_BITS = 20
"""A noisy sum is rounded to the public grid σ·2⁻²⁰ against low bits."""


class RandomStream:
    """A cryptographic stream of random bytes, and of numbers made from them.

    Guarantees:
        Under a fresh key the bytes are those of AES-256 in counter mode: no program that cannot
        break AES distinguishes them from uniform bytes. A stream is never copied or rewound.

    Attributes:
        position: number of bytes taken so far.
    """

    # Of draw_ahead: numbers a call, calls not drawn yet, and the drawn numbers not taken yet.
    _count, _calls = 0, 0
    _drawn: Iterator[torch.Tensor] = iter(())

    def __init__(self, key: bytes, position: int = 0) -> None:
        """Start the stream of a 32-byte ``key``, to be used for one purpose, once.

        Args:
            key: of the stream.
            position: bytes that an interrupted seeded simulation took of it before.
        """
        # CTR starts at any block of 16 bytes; the bytes already taken of it are dropped below.
        blocks, rest = divmod(position, 16)
        cipher = Cipher(algorithms.AES(key), modes.CTR(blocks.to_bytes(16, "big")))
        self._encryptor, self.position = cipher.encryptor(), position - rest
        self.bytes(rest)

    def bytes(self, count: int) -> bytes:
        """Return the next ``count`` bytes."""
        self.position += count
        # Zeros encrypted in CTR mode are the key stream itself.
        return self._encryptor.update(bytes(count))

    def bernoulli(self, count: int, probability: float) -> npt.NDArray[np.int64]:
        """Return the indices, ascending, of ``count`` independent trials that succeeded.

        Each trial succeeds with ``probability`` rounded down to a multiple of 2⁻³², so never with
        more than the accounted probability.
        """
        if probability >= 1:
            return np.arange(count)
        # Rounded down: a larger probability than the accounted one would cost more.
        threshold = math.floor(probability * 2**32)
        words = np.frombuffer(self.bytes(4 * count), dtype=np.uint32)
        return np.flatnonzero(words < threshold)

    def draw_ahead(self, count: int, calls: int) -> None:
        """Let the next ``calls`` calls of ``normal(count)`` draw together.

        The calls return the same bits in the same order, but short pieces of the stream cost less
        together. No number is returned twice. The numbers of an announced call that is not made are
        lost.
        """
        self._count, self._calls, self._drawn = count, calls, iter(())

    def normal(self, count: int, device: torch.device | None = None) -> torch.Tensor:
        """Return ``count`` independent standard normals, float64, on ``device`` (None: the CPU).

        Box–Muller on 53-bit uniforms in (0, 1]: tails reach 8.5 σ.
        """
        on_cpu = device is None or device.type == "cpu"
        if count == self._count:
            ready = next(self._drawn, None)
            largest = _BLOCK if on_cpu else _ON_DEVICE
            if ready is None and self._calls and count <= largest:
                at_once = _AHEAD // count if on_cpu else min(_ON_DEVICE // count, _CALLS)
                calls = min(self._calls, at_once)
                self._calls -= calls
                self._drawn = iter(self._normals(calls, count, device))
                ready = next(self._drawn)
            if ready is not None:
                return ready
        if not on_cpu:
            return self._normals(1, count, device)[0]
        import torch

        result = torch.empty(count, dtype=torch.float64)
        for start in range(0, count, _BLOCK):
            stop = min(start + _BLOCK, count)
            result[start:stop] = self._normals(1, stop - start)[0]
        return result

    def _normals(self, calls: int, count: int, device: torch.device | None = None) -> torch.Tensor:
        """Return the normals of several calls, shape ``(calls, count)``, one pass over all."""
        if device is None or device.type == "cpu":
            return _box_muller([self], calls, count)
        return normals_of([self] * calls, count, device)

    def fill(self, target: memoryview) -> None:
        """Write the next bytes over ``target``, except its last 15, which the cipher needs."""
        count = len(target) - _SLACK
        self.position += count
        zeros = _ZEROS[:count] if count <= len(_ZEROS) else bytes(count)
        self._encryptor.update_into(zeros, target)

    def gumbel(self, count: int) -> npt.NDArray[np.float64]:
        """Return ``count`` independent standard Gumbels, −ln of exponentials, all finite.

        They are made from 52-bit uniforms within (0, 1): their tails reach from −3.6 to 36.7, which
        corresponds to a probability of 2⁻⁵³.
        """
        words = np.frombuffer(self.bytes(8 * count), dtype=np.uint64) >> np.uint64(12)
        # The + ½ excludes 0 and 1, so that both logarithms are finite.
        return -np.log(-np.log1p(-(words.astype(np.float64) + 0.5) * 2.0**-52))


def _bytes_of(count: int) -> int:
    """Return the bytes that ``count`` normals are made of.

    Two uniforms of 8 bytes make two normals; of an odd number the last normal is dropped.
    """
    return 16 * ((count + 1) // 2)


def _box_muller(streams: Sequence[RandomStream], calls: int, count: int) -> torch.Tensor:
    """Return the next ``calls`` times ``count`` normals of each stream, in one pass over all.

    Float64, shape ``(streams · calls, count)``; each row has the bits that it has alone.
    """
    import torch

    size, half = calls * _bytes_of(count), (count + 1) // 2
    words = torch.empty(len(streams) * size // 8 + _SLACK // 8 + 1, dtype=torch.int64)
    # In order: bytes that the cipher leaves behind its piece are overwritten by the next one's.
    source = words.numpy().data.cast("B")
    for number, stream in enumerate(streams):
        stream.fill(source[number * size : (number + 1) * size + _SLACK])
    words = words[: len(streams) * size // 8].view(-1, 2 * half)
    return _transformed(words)[:, :count]


def _transformed(words: torch.Tensor) -> torch.Tensor:
    """Return a float64 normal for each of an even number of 64-bit words a row; uses them up."""
    import torch

    words = words.bitwise_and_(2**53 - 1)
    # The + 1 excludes 0 with its logarithm −∞; the least value 2⁻⁵³ bounds the tail at 8.5 σ.
    uniform = words.double().add_(1).view(len(words), 2, -1)
    radius = uniform[:, :1].mul_(2.0**-53).log_().mul_(-2).sqrt_()
    # A power of two: 2π·2⁻⁵³ times k has the bits of 2π times k·2⁻⁵³.
    angle = uniform[:, 1:].mul_(2 * math.pi * 2.0**-53)
    # The words are used up; their memory is in the cache still.
    pairs = words.view(torch.float64).view_as(uniform)
    torch.cos(angle, out=pairs[:, :1])
    torch.sin(angle, out=pairs[:, 1:])
    return pairs.mul_(radius).view(len(uniform), -1)


def blocks_of(
    streams: Sequence[RandomStream], count: int
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Yield rows, columns and their normals, ``count`` of each stream."""
    for start in range(0, count, _BLOCK):
        columns = slice(start, min(start + _BLOCK, count))
        width = columns.stop - start
        some = max(_AHEAD // width, 1)
        for first in range(0, len(streams), some):
            rows = slice(first, min(first + some, len(streams)))
            yield rows, columns, _box_muller(streams[rows], 1, width)


def normals_of(
    streams: Sequence[RandomStream], count: int, device: torch.device | None = None
) -> torch.Tensor:
    """Return ``count`` normals of each stream, float64, on ``device``, shape ``(n, count)``.

    Row i has the bits that ``streams[i].normal(count, device)`` returns, and takes the same bytes.
    """
    import torch

    result = torch.empty(len(streams), count, dtype=torch.float64, device=device)
    if result.device.type == "cpu":
        for rows, columns, normals in blocks_of(streams, count):
            result[rows, columns] = normals
        return result
    from hdpfl_flower.linalg.chacha20 import BLOCK, KEY, key_stream, keys_of

    # A fresh key a call and stream, so that no position of a second cipher need be kept.
    keys = moved(keys_of(b"".join(stream.bytes(KEY) for stream in streams)), result.device)
    some = max(_ON_DEVICE // max(count, 1), 1)
    for first in range(0, len(streams), some):
        block = 0
        for start in range(0, count, _ON_DEVICE):
            width = min(count - start, _ON_DEVICE)
            numbers = _bytes_of(width) // 8
            blocks = -(-8 * numbers // BLOCK)
            words = key_stream(keys[first : first + some], block, blocks).view(torch.int64)
            normals = _transformed(words[:, :numbers].contiguous())
            result[first : first + some, start : start + width] = normals[:, :width]
            block += blocks
    return result


@dataclass(frozen=True)
class Positions:
    """Bytes taken of each stream of a release."""

    sampling: int = 0
    noise: int = 0


@dataclass(frozen=True)
class ReleaseStreams:
    """The two streams of one release: batches and noise never share a key."""

    sampling: RandomStream
    noise: RandomStream

    @classmethod
    def fresh(cls) -> ReleaseStreams:
        """Return streams under keys that the operating system has just drawn."""
        return cls(RandomStream(os.urandom(32)), RandomStream(os.urandom(32)))

    @classmethod
    def simulated(
        cls,
        seed: int,
        site: str,
        server_round: int,
        kind: str,
        positions: Positions = Positions(),
    ) -> ReleaseStreams:
        """Return the seeded streams of a simulated release, without protection.

        ``positions`` are the bytes taken of each before, see :class:`RandomStream`.
        """

        def key(purpose: str) -> bytes:
            label = repr(("hdpfl simulation", seed, site, server_round, kind, purpose))
            return hashlib.sha256(label.encode()).digest()

        return cls(
            RandomStream(key("sampling"), positions.sampling),
            RandomStream(key("noise"), positions.noise),
        )


def add_noise(total: torch.Tensor, std: float, stream: RandomStream) -> torch.Tensor:
    """Return ``total`` + N(0, std²) in each coordinate, rounded to a public grid.

    Args:
        total: clipped sum, float32, shape ``(d,)``, any device.
        std: standard deviation z·C of the noise; 0 returns ``total`` as it is.
        stream: the release's noise stream.

    Returns:
        float32, shape ``(d,)``, same device.

    Guarantees:
        The sum and the noise meet in float64, on the sum's device; the result is a multiple of the
        power of two next below std·2⁻²⁰ (a mitigation of attacks on low-order bits, not a proof).
    """
    if std == 0:
        return total
    grid = grid_of(std)
    noise = stream.normal(total.numel(), total.device)
    # In units of the grid, so that rounding to whole numbers rounds to the grid.
    noise.mul_(std / grid).add_(total, alpha=1 / grid)
    return noise.round_().mul_(grid).to(total.dtype)


def grid_of(std: float) -> float:
    """Return the public grid of a noisy sum: the power of two next below std·2⁻²⁰.

    A function of public numbers alone. A power of two: scaling by it is exact.
    """
    return 2.0 ** (math.floor(math.log2(std)) - _GRID_BITS)
