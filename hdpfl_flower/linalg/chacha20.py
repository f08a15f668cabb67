"""ChaCha20 key streams of many keys in tensor operations, on any device.

Reference: Nir and Langley, ChaCha20 and Poly1305 for IETF Protocols (RFC 8439), section 2.3. The
nonce is zero: a key has one stream.
"""

from __future__ import annotations

import torch

BLOCK = 64
"""Bytes of a block of the stream."""
KEY = 32
"""Bytes of a key."""
_CONSTANTS = b"expand 32-byte k"
_DOUBLE_ROUNDS = 10


def key_stream(keys: torch.Tensor, first: int, blocks: int) -> torch.Tensor:
    """Return blocks ``first`` and after of each key's stream, its words in the cipher's order.

    Args:
        keys: int32, eight little-endian words a key, shape ``(k, 8)``.
        first: number of the first block.
        blocks: how many, n; ``first`` + n is at most 2³².

    Returns:
        int32, shape ``(k, 16·n)``, on the device of ``keys``.

    Raises:
        ValueError: the counter would start anew, and repeat the stream.
    """
    if first < 0 or first + blocks > 2**32:
        raise ValueError("a key of ChaCha20 has 2^32 blocks")
    count, device = len(keys), keys.device
    # A row of the cipher's 4 × 4 matrix each, shape (4, k, n): int32 arithmetic is modulo 2³².
    constants = torch.arange(4, device=device, dtype=torch.int32)
    for place, word in enumerate(_words(_CONSTANTS)):
        constants[place] = word
    upper, lower = keys.t()[:4], keys.t()[4:]
    start = [
        row.unsqueeze(2).expand(4, count, blocks)
        for row in (constants.unsqueeze(1).expand(4, count), upper, lower)
    ]
    last = torch.zeros(4, 1, blocks, dtype=torch.int32, device=device)
    last[0] = torch.arange(first, first + blocks, device=device).to(torch.int32)
    start.append(last.expand(4, count, blocks))
    a, b, c, d = (row.clone(memory_format=torch.contiguous_format) for row in start)
    spare = torch.empty_like(a)
    for _ in range(_DOUBLE_ROUNDS):
        _round(a, b, c, d, spare)
        # The diagonals become columns, and columns again.
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _round(a, b, c, d, spare)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    words = torch.stack([row.add_(begin) for row, begin in zip((a, b, c, d), start, strict=True)])
    # From (row, column, key, block) to words one after another.
    return words.permute(2, 3, 0, 1).contiguous().view(count, 16 * blocks)


def keys_of(texts: bytes) -> torch.Tensor:
    """Return the words of keys one after another, int32, on the CPU, shape ``(k, 8)``."""
    return torch.tensor(_words(texts), dtype=torch.int32).view(-1, KEY // 4)


def _words(text: bytes) -> list[int]:
    """Return little-endian words of 32 bits, signed."""
    return [int.from_bytes(text[i : i + 4], "little", signed=True) for i in range(0, len(text), 4)]


def _round(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, spare: torch.Tensor
) -> None:
    """Apply the four quarter rounds of the columns in place."""
    for first, second in ((16, 12), (8, 7)):
        _rotate(d.bitwise_xor_(a.add_(b)), first, spare)
        _rotate(b.bitwise_xor_(c.add_(d)), second, spare)


def _rotate(words: torch.Tensor, bits: int, spare: torch.Tensor) -> None:
    """Rotate each word to the left in place."""
    # int32 shifts its sign in from the left; the mask takes it away.
    torch.bitwise_right_shift(words, 32 - bits, out=spare).bitwise_and_(2**bits - 1)
    words.bitwise_left_shift_(bits).bitwise_or_(spare)
