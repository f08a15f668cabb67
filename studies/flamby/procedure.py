"""FLamby's training under DP, re-implemented for many simultaneous runs.

One linear layer and a sigmoid; 15 rounds in which each hospital takes 100 SGD steps at rate .001 on
batches of 4; the server averages the changes by records. A step clips each record's gradient to
1.1, adds N(0, (σ·1.1)²) to the sum and divides by a constant, the batch that Opacus expects.

As published, batches are those of a shuffled pass (each record once per pass, the last batch
shorter) and every hospital's noise comes from generators of the same seed. :data:`HONEST` follows
the accounting: Poisson sampling, and separate noise for each hospital.

References: du Terrail et al., FLamby (NeurIPS 2022, datasets and benchmarks), section on privacy;
Abadi et al., Deep Learning with Differential Privacy (CCS 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from hdpfl_flower.models.task import Records
from studies.natural.federation import Split

Floats = npt.NDArray[np.float64]
Batch = tuple[Floats, Floats, Floats]
"""Features with bias 1, targets, and presence (1 or 0) of records."""
Normals = Callable[[tuple[int, ...]], Floats]
"""Function of a shape to normal numbers."""

ROUNDS = 15
LOCAL_STEPS = 100
STEPS = ROUNDS * LOCAL_STEPS
BATCH = 4
RATE = 0.001
CLIP_NORM = 1.1


@dataclass(frozen=True)
class Recipe:
    """Differences between the published and the accounted procedure.

    Attributes:
        poisson: each record is in a step's batch with probability 1/batches; else shuffled passes.
        one_seed: all hospitals draw the same normal numbers.
    """

    poisson: bool
    one_seed: bool


PUBLISHED = Recipe(poisson=False, one_seed=True)
SECRET_SEEDS = Recipe(poisson=False, one_seed=False)
HONEST = Recipe(poisson=True, one_seed=False)


def batches_of(records: int) -> int:
    """Return the batches of a pass, the last one shorter.

    >>> [batches_of(n) for n in (199, 172, 30, 85)]
    [50, 43, 8, 22]
    """
    return math.ceil(records / BATCH)


def divisor_of(records: int) -> int:
    """Return Opacus' expected batch: records over batches, rounded down.

    >>> [divisor_of(n) for n in (199, 172, 30, 85)]
    [3, 4, 3, 3]
    """
    return records // batches_of(records)


def train(
    split: Split,
    sigmas: Sequence[float],
    recipe: Recipe,
    runs: int,
    seed: int,
    *,
    sent: list[Floats] | None = None,
) -> Floats:
    """Return the models of independent runs.

    Args:
        split: the hospitals' training records; no test record is read.
        sigmas: noise multiplier of each hospital; 0: none, and no clipping either.
        recipe: batches and noise.
        runs: number of runs.
        seed: of all draws.
        sent: receives the hospitals' changes of each round, shape ``(sites, runs, d + 1)``.

    Returns:
        weights and bias, shape ``(runs, d + 1)``.
    """
    own = [split.train.take(np.flatnonzero(split.owners == site)) for site in range(split.sites)]
    shares = np.bincount(split.owners) / len(split.owners)
    start, *streams = np.random.SeedSequence(seed).spawn(1 + 2 * len(own))
    # Equal seeds give equal numbers: each hospital draws as many of the same shape.
    seeds = [streams[0 if recipe.one_seed else site] for site in range(len(own))]
    draws = [np.random.default_rng(one).standard_normal for one in seeds]
    orders = [np.random.default_rng(one) for one in streams[len(own) :]]
    batches = [
        local_batches(part, recipe, runs, rng) for part, rng in zip(own, orders, strict=True)
    ]
    models = initial_models(split.train.features.shape[1], runs, np.random.default_rng(start))
    for _ in range(ROUNDS):
        changes = np.stack(
            [
                local_change(models, drawn, sigma, divisor_of(len(part)), normals)
                for part, sigma, drawn, normals in zip(own, sigmas, batches, draws, strict=True)
            ]
        )
        if sent is not None:
            sent.append(changes)
        models = models + np.tensordot(shares, changes, 1)
    return models


def initial_models(features: int, runs: int, rng: np.random.Generator) -> Floats:
    """Return torch's initial linear layers with biases, shape ``(runs, features + 1)``."""
    bound = 1 / math.sqrt(features)
    return rng.uniform(-bound, bound, (runs, features + 1))


def local_change(
    models: Floats, batches: Iterator[Batch], sigma: float, divisor: int, normals: Normals
) -> Floats:
    """Return each model's change by a hospital's :data:`LOCAL_STEPS`.

    Args:
        models: received models, shape ``(runs, d + 1)``.
        batches: of its steps; one is taken for each step.
        sigma: noise multiplier; 0: none, and no clipping either.
        divisor: of the sum.
        normals: draws normal numbers of a shape.
    """
    local = models.copy()
    noise = sigma * CLIP_NORM * normals((LOCAL_STEPS, *models.shape)) if sigma else None
    for step in range(LOCAL_STEPS):
        total = _clipped_sum(local, *next(batches), clip=sigma > 0)
        if noise is not None:
            total += noise[step]
        local -= RATE / divisor * total
    return local - models


def _clipped_sum(
    models: Floats, features: Floats, targets: Floats, present: Floats, *, clip: bool
) -> Floats:
    """Return the sum of the present records' clipped gradients.

    Args:
        models: shape ``(runs, d + 1)``.
        features: with a 1 for the bias, shape ``(runs or 1, m, d + 1)``.
        targets: shape ``(runs or 1, m)``.
        present: 1 or 0, shape ``(runs or 1, m)``.
        clip: whether gradients are clipped.
    """
    errors = expit((features @ models[:, :, None])[:, :, 0]) - targets
    if clip:
        norms = np.abs(errors) * np.sqrt(np.square(features).sum(2))
        errors *= np.minimum(1, CLIP_NORM / np.maximum(norms, 1e-12))
    found: Floats = ((errors * present)[:, None, :] @ features)[:, 0]
    return found


def local_batches(
    own: Records, recipe: Recipe, runs: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """Yield features, targets and presence for each step, endlessly."""
    features = np.hstack([own.features, np.ones((len(own), 1))]).astype(np.float64)
    targets = own.targets.astype(np.float64)
    count = batches_of(len(own))
    while recipe.poisson:
        yield (
            features[None],
            targets[None],
            (rng.random((runs, len(own))) < 1 / count).astype(np.float64),
        )
    places = np.tile(np.arange(len(own)), (runs, 1))
    while True:
        order = rng.permuted(places, axis=1)
        for first in range(0, len(own), BATCH):
            chosen = order[:, first : first + BATCH]
            yield features[chosen], targets[chosen], np.ones(chosen.shape)
