"""Refusal of zeros, copies and repetitions; weight bound of ``cap``.

An update of zeros, or a copy, seems to carry no noise, and a strategy that weighs by noise gives it
all the weight (measured: weight 1.0000, progress 0). No honest site sends one: noise is drawn anew
for every release. So each guard, ``none`` included, refuses them.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.types import Vector

Rows = npt.NDArray[np.float32]
Digests = dict[str, npt.NDArray[np.int64]]
"""Site → digests of its distinct uploads, shape ``(k, 2)``."""

ZEROS = "guard: an update of zeros"
COPY = "guard: a copy of another site's update"
REPEATS = "guard: repeats an upload of its own"

CAP = 3.0
"""No site weighs more than this many times 1/n."""
_TOLD = 1024
"""Numbers of an update that identify it among noisy updates."""
FEW = 4
"""Size below which honest updates may be equal by chance."""
_NOTHING = 1e-12
"""Smallest sum of weights that can be shared in proportion."""


def refuse_copies(
    digests: Mapping[str, npt.NDArray[np.int64]],
    sites: Sequence[str],
    updates: Rows,
) -> tuple[Digests, dict[str, str]]:
    """Return the digests after a round, and the sites refused for zeros or copies.

    Args:
        digests: of the rounds before, 96 bits an upload, see :func:`_digest`; not changed.
        sites: the rows' sites.
        updates: float32, shape ``(n, d)``.

    Guarantees:
        Exact copies of one round are all refused, since the copier is not known; a copy of an
        upload of an earlier round is refused alone. Two honest updates of d ≥ 4 numbers with noise
        of their own are taken for copies with probability below 1e-19 (float32 has about 2²² values
        within a standard deviation); of one number each, below 1e-6, and of fewer than four each is
        compared with those of its round and its own last one alone.
    """
    of_rows = [_digest(row) for row in updates]
    often = Counter(digest.tobytes() for digest in of_rows)
    distinct = updates.shape[1] >= FEW
    earlier = {site: rows[0 if distinct else -1 :] for site, rows in digests.items()}
    earlier_digests = {digest.tobytes() for rows in earlier.values() for digest in rows}
    after, refused = dict(digests), {}
    for site, row, digest in zip(sites, updates, of_rows, strict=True):
        # Digests of the site's own uploads, shape (k, 2); a repetition of any of them was not
        # noised anew.
        of_site = earlier.get(site, np.zeros((0, 2), np.int64))
        again = bool((of_site == digest).all(axis=1).any())
        if not row.any():
            refused[site] = ZEROS
        elif often[digest.tobytes()] > 1:
            refused[site] = COPY
        elif again:
            refused[site] = REPEATS
        elif distinct and digest.tobytes() in earlier_digests:
            refused[site] = COPY
        if not again:
            after[site] = np.vstack([of_site, digest] if distinct else [digest])
    return after, refused


def cap_weights(weights: Vector, limit: float) -> Vector:
    """Return convex weights of at most ``limit``, shape ``(n,)``.

    Water-filling: the weight that is cut off goes to the sites below the limit, in proportion to
    their weights, until none exceeds it. Sites without weight share the rest. Where ``limit`` is
    below 1/n, every weight is 1/n.

    >>> cap_weights(np.array([0.8, 0.1, 0.1, 0.0]), 0.5)
    array([0.5 , 0.25, 0.25, 0.  ])
    """
    capped, full = weights.copy(), np.zeros(len(weights), dtype=np.bool_)
    limit = max(limit, 1 / len(weights))
    # Every pass fills at least one more site, so that there are n passes at most.
    while (capped > limit * (1 + 1e-12)).any():
        # `full` only grows: a site that was cut off never falls below the limit again.
        full |= capped > limit
        left = 1 - limit * int(full.sum())
        below = np.where(full, 0, weights)
        if below.sum() < _NOTHING:
            below = (~full).astype(np.float64)
        capped = np.where(full, limit, below * (left / max(below.sum(), _NOTHING)))
    return capped


def _digest(row: Rows) -> npt.NDArray[np.int64]:
    """Return a hash's 96 bits as two numbers; −0 counts as 0.

    It is the SHA-256 of a CRC of all numbers and of ``_TOLD`` of them: a tenth of the time of the
    SHA-256 of all. An update forged to look like a copy is refused like one, which harms its
    sender.
    """
    # −0 + 0 = 0: a copy with signs of zeros changed has the same digest.
    numbers = np.ascontiguousarray(row + np.float32(0))
    some = np.ascontiguousarray(numbers[:: max(len(numbers) // _TOLD, 1)])
    check = zlib.crc32(numbers.data).to_bytes(4, "big")
    digest = hashlib.sha256(check + some.tobytes()).digest()
    return np.array([int.from_bytes(digest[start : start + 6], "big") for start in (0, 6)])
