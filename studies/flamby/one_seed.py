"""What noise from one seed hides: nothing from who guesses the seed.

FLamby's hospitals seed a generator of torch with the same number each, by default the seconds of
the clock. Whoever knows the hour of a run has 3,600 guesses, the ten minutes of its start 600. The
noise of a guess, subtracted, leaves what the hospital computed from its records; the right guess
leaves least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from studies.flamby.procedure import (
    CLIP_NORM,
    LOCAL_STEPS,
    PUBLISHED,
    RATE,
    Floats,
    Normals,
    divisor_of,
    train,
)
from studies.natural.federation import Split

GUESSES = 600
"""Seconds of ten minutes."""
RANKED = 2
"""Rounds by which guesses are compared."""


@dataclass(frozen=True)
class Unmasked:
    """What an attacker found.

    Attributes:
        seed: that leaves least of all guesses.
        sums: sums of the clipped gradients that it leaves, a row for each round, shape
            ``(rounds, sites, d + 1)``.
    """

    seed: int
    sums: Floats


def seconds_generator(seed: int) -> Normals:
    """Return what draws normal numbers as Opacus does: step by step, weights and then the bias."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape: tuple[int, ...]) -> Floats:
        steps, runs, size = shape
        if runs != 1:
            raise ValueError("one seed is of one run")
        rows = [
            torch.cat([torch.randn(n, generator=generator) for n in (size - 1, 1)])
            for _ in range(steps)
        ]
        return torch.stack(rows).double().numpy()[:, None]

    return draw


def changes_of_a_run(split: Split, sigmas: Sequence[float], clock: int, seed: int) -> Floats:
    """Return what the hospitals send in a run whose noise is of the clock's second.

    Shape ``(rounds, sites, d + 1)``; ``seed`` is of the initial model and the batches.
    """
    sent: list[Floats] = []
    draws = [seconds_generator(clock) for _ in range(split.sites)]
    train(split, sigmas, PUBLISHED, 1, seed, draws=draws, sent=sent)
    return np.stack(sent)[:, :, 0]


def unmask(
    changes: Floats, sigmas: Sequence[float], records: Sequence[int], guesses: Sequence[int]
) -> Unmasked:
    """Return the guess whose noise leaves least of the changes, and what it leaves.

    Args:
        changes: that the hospitals sent, shape ``(rounds, sites, d + 1)``.
        sigmas: noise multiplier of each; follows from ε, δ and its records.
        records: of each hospital's training, which it sends as its weight.
        guesses: seeds.
    """
    divisors = np.array([divisor_of(n) for n in records])
    # Sums over a round of clipped gradients and noise: what SGD multiplied by −rate/divisor.
    totals = -changes * divisors[:, None] / RATE
    scales = CLIP_NORM * np.asarray(sigmas)

    def left(guess: int, rounds: int) -> Floats:
        draw, size = seconds_generator(guess), changes.shape[2]
        noise = np.stack([draw((LOCAL_STEPS, 1, size)).sum((0, 1)) for _ in range(rounds)])
        found: Floats = totals[:rounds] - scales[:, None] * noise[:, None]
        return found

    def size_of(guess: int) -> float:
        return float(np.square(left(guess, RANKED) / scales[:, None]).sum())

    best = min(guesses, key=size_of)
    return Unmasked(best, left(best, len(changes)))
