"""Guards against sites that lie: what every guard refuses, and the two that only bound a site.

An update of zeros, or a copy, seems to carry no noise, and a rule that weighs by noise gives it all
the weight (measured: weight 1.0000, progress 0). No honest site sends one: noise is drawn anew for
every release. So each guard, ``none`` included, refuses them. ``cap`` and ``centred-clipping``
bound what one site can do in a round; ``evidence.py`` gathers what a site does over the rounds.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.updates import weighted_sum

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]
State = Mapping[str, Vector]
"""What a guard keeps between rounds: arrays by name, so that a checkpoint can hold it."""

ZEROS = "guard: an update of zeros"
COPY = "guard: a copy of another site's update"
REPEATS = "guard: repeats an upload of its own"

CAP = 3.0
"""No site weighs more than this many times 1/n."""
_TOLD = 1024
"""Numbers of an update that tell it from any other with noise of its own."""
_FEW = 4
"""Numbers of an update below which two honest ones are equal in the long run."""
_NOTHING = 1e-12
"""Weights that sum to less are no proportion to share by."""


def refuse_copies(
    state: State, sites: Sequence[str], updates: Rows
) -> tuple[dict[str, Vector], dict[str, str]]:
    """Return the state after a round, and which sites are refused for zeros or for a copy.

    Args:
        state: ``digest/SITE``: 96 bits that tell each upload of a site, see :func:`_digest`, shape
            ``(k, 2)``; not changed.
        sites: the rows' sites.
        updates: float32, shape ``(n, d)``.

    Guarantees:
        Of exact copies of one round all are refused, for who copied is not known; who sends what
        it or another site sent in an earlier round is refused alone. Two honest updates of d ≥ 4
        numbers with noise of their own are taken for copies with probability below 1e-19 (float32
        has about 2²² values within a standard deviation); of one number each, below 1e-6, and of
        fewer than 4 each is compared with those of its round and its own last one alone.
    """
    found = [_digest(row) for row in updates]
    often = Counter(digest.tobytes() for digest in found)
    told = updates.shape[1] >= _FEW
    earlier = {
        name.removeprefix("digest/"): digests.reshape(-1, 2)[0 if told else -1 :]
        for name, digests in state.items()
        if name.startswith("digest/")
    }
    known = {digest.tobytes() for digests in earlier.values() for digest in digests}
    after, refused = dict(state), {}
    for site, row, digest in zip(sites, updates, found, strict=True):
        own = earlier.get(site, np.zeros((0, 2)))
        again = bool((own == digest).all(axis=1).any())
        if not row.any():
            refused[site] = ZEROS
        elif often[digest.tobytes()] > 1:
            refused[site] = COPY
        elif again:
            refused[site] = REPEATS
        elif told and digest.tobytes() in known:
            refused[site] = COPY
        if not again:
            after[f"digest/{site}"] = np.vstack([own, digest] if told else [digest])
    return after, refused


def cap_weights(weights: Vector, limit: float) -> Vector:
    """Return convex weights of at most ``limit``, shape ``(n,)``; the rest shared in proportion.

    Water-filling: what is cut off goes to the sites below the limit, in proportion to their
    weights, until none exceeds it. Sites without weight share what the others may not take. Where
    ``limit`` is below 1/n, every weight is 1/n.

    >>> cap_weights(np.array([0.8, 0.1, 0.1, 0.0]), 0.5)
    array([0.5 , 0.25, 0.25, 0.  ])
    """
    capped, full = weights.copy(), np.zeros(len(weights), dtype=np.bool_)
    limit = max(limit, 1 / len(weights))
    while (capped > limit * (1 + 1e-12)).any():
        full |= capped > limit
        left = 1 - limit * int(full.sum())
        below = np.where(full, 0, weights)
        if below.sum() < _NOTHING:
            below = (~full).astype(np.float64)
        capped = np.where(full, limit, below * (left / max(below.sum(), _NOTHING)))
    return capped


def clip_around(centre: Vector, weights: Vector, updates: Rows) -> tuple[Rows, Vector]:
    """Return c + Σ wᵢ·min(1, τ/‖uᵢ − c‖)·(uᵢ − c), shape ``(d,)``, and the factors, ``(n,)``.

    Centred clipping: Karimireddy, He and Jaggi, Learning from History for Byzantine Robust
    Optimization (ICML 2021), one iteration from the last round's aggregate.

    The radius τ is the median distance ‖uᵢ − c‖. The sites' noise differs a thousandfold, so no
    constant fits: below the quietest site's noise τ would clip everyone, at the loudest one's no
    one. At the median, up to half the sites may lie without moving τ beyond an honest distance.
    Only what goes into the aggregate is clipped: a rule that estimates noise must see the updates
    as they are, for a loud update cut short would pass for a quiet one.

    Args:
        centre: c, shape ``(d,)``.
        weights: convex, shape ``(n,)``.
        updates: float32, shape ``(n, d)``.
    """
    distances = np.array([math.sqrt(_squared(row - centre)) for row in updates])
    radius = float(np.median(distances))
    factors = np.minimum(1.0, radius / np.maximum(distances, np.finfo(np.float64).tiny))
    shares = weights * factors
    moved = weighted_sum(shares, updates) + (1 - shares.sum()) * centre
    return moved.astype(np.float32), factors


def _digest(row: Rows) -> Vector:
    """Return 96 bits of a hash as two whole numbers that float64 holds exactly; −0 counts as 0.

    It is the SHA-256 of a CRC of all numbers and of ``_TOLD`` of them: a tenth of the time of the
    SHA-256 of all. What is forged to look like a copy is refused like one, which harms its sender.
    """
    numbers = np.ascontiguousarray(row + np.float32(0))
    some = np.ascontiguousarray(numbers[:: max(len(numbers) // _TOLD, 1)])
    check = zlib.crc32(numbers.data).to_bytes(4, "big")
    digest = hashlib.sha256(check + some.tobytes()).digest()
    parts = (int.from_bytes(digest[start : start + 6], "big") for start in (0, 6))
    return np.array([float(part) for part in parts])


def _squared(vector: Vector) -> float:
    return float(vector @ vector)
