"""Proofs against sites: what has no new noise of its own is refused, and no honest site is.

Sites are drawn as at Dist2 of the Robust-HDP paper: noise that differs fortyfold, a signal far
below it, and fewer coordinates than a real model, so that it is fast.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from hdpfl_flower.estimators.softmax_head import Head
from strategies.guards.proof import QUIET, REPEATS, Floor, ProofState, refuse_proven

Rows = npt.NDArray[np.float32]
N, CLASSES, INPUTS = 20, 10, 199
D = CLASSES * (INPUTS + 1)
HEAD = Head(0, CLASSES, INPUTS)
ROUNDS = 12
TERMS = Floor(ROUNDS)
EMPTY = ProofState()
NAMES = [str(i) for i in range(N)]


class Federation:
    """Rounds of honest updates: ``clean[i]`` in one direction, and noise of each site's own."""

    def __init__(self, seed: int, n: int = N, signal: float = 20.0, fading: float = 0.9) -> None:
        self.generator = np.random.default_rng(seed)
        self.stds = 10 ** self.generator.uniform(-2.6, -1, n)
        self.ratios = self.generator.uniform(0.4, 1.6, n) * signal
        self.n, self.fading = n, fading

    def rounds(self, count: int = ROUNDS) -> Iterator[tuple[Rows, Rows]]:
        """Yield (clean, honest) of each round, each shape (n, d); the signal fades."""
        for t in range(count):
            layer = self.generator.standard_normal((CLASSES, INPUTS + 1))
            layer -= layer.mean(0)  # a softmax layer's gradient adds up to 0 over the classes
            step = np.concatenate([layer[:, :-1].ravel(), layer[:, -1]])
            step /= np.linalg.norm(step)
            clean = (self.stds * self.ratios * self.fading**t)[:, None] * step
            noise = self.stds[:, None] * self.generator.standard_normal((self.n, D))
            yield clean.astype(np.float32), (clean + noise).astype(np.float32)


def jittered(row: Rows, generator: np.random.Generator) -> Rows:
    """Return ``row`` with every number changed by about a thousandth of it."""
    jitter = generator.standard_normal(D).astype(np.float32)
    return row * (1 + np.float32(1e-3) * jitter)


def proven(honest: Rows, floor: Floor = TERMS, head: Head | None = HEAD) -> dict[str, str]:
    """Return the refusals of a first round."""
    return refuse_proven(EMPTY, NAMES, honest, floor, head)[1]


def refusals(
    federation: Federation, floor: Floor = TERMS, head: Head | None = HEAD, count: int = ROUNDS
) -> list[dict[str, str]]:
    """Return each round's refusals, where nobody lies."""
    state, found = EMPTY, []
    for _, honest in federation.rounds(count):
        state, refused = refuse_proven(state, NAMES, honest, floor, head)
        found.append(refused)
    return found


@pytest.mark.parametrize("head", [HEAD, None], ids=["head", "no head"])
def test_nobody_is_refused_where_nobody_lies(head: Head | None) -> None:
    for seed, signal in enumerate((20.0, 20.0, 5.0, 60.0)):
        assert not any(refusals(Federation(10 + seed, signal=signal), head=head))


def test_who_hardly_changes_its_upload_is_refused_though_it_jitters() -> None:
    federation, state = Federation(9), EMPTY
    for t, (_, honest) in enumerate(federation.rounds(4)):
        if t == 0:
            first = honest[5].copy()
        honest[5] = jittered(first, federation.generator)
        state, refused = refuse_proven(state, NAMES, honest, TERMS, HEAD)
        assert refused == ({"5": REPEATS} if t else {})


@pytest.mark.parametrize("head", [HEAD, None], ids=["head", "no head"])
def test_less_noise_than_the_floor_is_refused(head: Head | None) -> None:
    """An honest site exactly at the floor passes, by the stated 5 standard deviations."""
    federation = Federation(10)
    federation.stds = np.full(N, 0.01)
    for _, honest in federation.rounds(4):
        honest[4] *= np.float32(0.5)
        assert proven(honest, Floor(ROUNDS, 0.01), head) == {"4": QUIET}
