"""MR-MTL's School training: ``python -m studies.natural.school_procedure DATA_DIR``.

Re-implemented in NumPy; ten seeds, each with its own draw of the tests. A linear model that starts
at zero, half the squared error, 201 passes at rate .01; a pass takes shuffled batches of 32 (a
school with fewer takes all) and leaves out the records beyond the last whole one. A step clips each
record's gradient, the pull to the mean included, to 1 and adds noise N(0, σ²) to the sum. Schools
weigh by their training pupils. Each scales features by its own means and deviations, and marks from
1 to 70 lie from 0 to 1; a fifth of its pupils, drawn, tests.

Noise: σ is that of our accountant (PLD) for ε = 6 under Poisson sampling, which its code accounts
(RDP) but does not use. So ε is nominal, and no ε covers means and deviations.

References: Liu, Hu, Wu and Smith (NeurIPS 2022, arXiv:2206.07902) and the README of its code.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.privacy.accounting import Steps, calibrate, epsilon_of, event_of, interval_for
from studies.natural.federation import outer_split

Floats = npt.NDArray[np.float64]
PASSES, BATCH, RATE, CLIP_NORM = 201, 32, 0.01, 1.0
EPSILON, DELTA = 6.0, 1e-3
SEEDS = 10
TOP, LEAST = 70, 1
"""Best and worst mark."""
RULES = ("local", "fedavg by records", "mr-mtl λ = 1")


@dataclass(frozen=True, repr=False)
class School:
    """Features with bias ``(n, d + 1)`` and marks ``(n,)``: training and test."""

    x: Floats
    y: Floats
    x_test: Floats
    y_test: Floats

    @property
    def batch(self) -> int:
        """Records in a step."""
        return min(BATCH, len(self.y))

    @property
    def batches(self) -> int:
        """Steps of a pass."""
        return len(self.y) // self.batch


def draw_schools(data_dir: str, seed: int) -> list[School]:
    """Return the schools, a random fifth for tests; raises as ``outer_split``."""
    split = outer_split("school", data_dir)
    x = np.concatenate([split.train.features, split.test.features]).astype(np.float64)
    y = np.concatenate([split.train.targets, split.test.targets]).astype(np.float64)
    owners = np.concatenate([split.owners, split.test_owners])
    random = np.random.default_rng(seed)
    return [_school(x[owners == one], y[owners == one], random) for one in range(owners.max() + 1)]


def _school(x: Floats, y: Floats, random: np.random.Generator) -> School:
    is_test = np.zeros(len(y), dtype=bool)
    is_test[random.choice(len(y), math.ceil(len(y) / 5), replace=False)] = True
    mean, deviation = x[~is_test].mean(axis=0), x[~is_test].std(axis=0)
    x = np.c_[(x - mean) / np.where(deviation > 0, deviation, 1), np.ones(len(y))]
    y = (TOP * y - LEAST) / (TOP - LEAST)
    return School(x[~is_test], y[~is_test], x[is_test], y[is_test])


def sigmas_of(schools: list[School]) -> Floats:
    """Return each school's noise multiplier, as its code accounts, shape ``(len(schools),)``."""
    known: dict[int, float] = {}
    for one in schools:
        if (n := len(one.y)) not in known:
            steps = Steps(one.batch / n, PASSES * one.batches)
            known[n] = calibrate([steps], EPSILON, DELTA)
    return np.array([known[len(one.y)] for one in schools])


def unamplified(sigma: float) -> float:
    """Return ε of the shuffled passes, each a Gaussian release, rounded up."""
    return epsilon_of(event_of([Steps(1.0, PASSES)], sigma), DELTA, interval_for(EPSILON, PASSES))


def train(
    schools: list[School], rule: str, sigmas: Floats, seed: int, passes: int = PASSES
) -> Floats:
    """Return each school's model after ``passes``, shape ``(len(schools), d + 1)``."""
    random = np.random.default_rng(seed)
    counts = np.array([len(one.y) for one in schools], dtype=np.float64)
    models = np.zeros((len(schools), schools[0].x.shape[1]))
    mean, pull = models[0], float(rule == RULES[2])
    for _ in range(passes):
        before = mean if rule == RULES[1] else None
        models = np.stack([
            _pass(one, own if before is None else before, mean, pull, sigma, random)
            for one, own, sigma in zip(schools, models, sigmas, strict=True)
        ])  # fmt: skip
        mean = np.average(models, axis=0, weights=counts)
    return np.tile(mean, (len(schools), 1)) if rule == RULES[1] else models


def _pass(
    one: School, model: Floats, mean: Floats, pull: float, sigma: float, random: np.random.Generator
) -> Floats:
    order = random.permutation(len(one.y))
    for batch in order[: one.batches * one.batch].reshape(one.batches, one.batch):
        x = one.x[batch]
        gradients = (x @ model - one.y[batch])[:, None] * x + pull * (model - mean)
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped = gradients * np.minimum(1, CLIP_NORM / np.maximum(norms, 1e-15))
        noise = CLIP_NORM * sigma * random.normal(size=len(model))
        model = model - RATE * (clipped.sum(axis=0) + noise) / one.batch
    return model


def error_of(schools: list[School], models: Floats) -> float:
    """Return the mean squared error of test pupils under their schools' models."""
    errors = [(s.x_test @ model - s.y_test) ** 2 for s, model in zip(schools, models, strict=True)]
    return float(np.concatenate(errors).mean())


def main(data_dir: str) -> None:
    """Print each strategy's error and its difference to local training.

    Over the seeds; also ε without amplification.
    """
    found: dict[str, list[float]] = {rule: [] for rule in RULES}
    bounds = (math.inf, -math.inf)
    for seed in range(SEEDS):
        schools = draw_schools(data_dir, seed)
        sigmas = sigmas_of(schools)
        for rule in RULES:
            found[rule].append(error_of(schools, train(schools, rule, sigmas, seed)))
        ends = unamplified(float(sigmas.max())), unamplified(float(sigmas.min()))
        bounds = min(bounds[0], ends[0]), max(bounds[1], ends[1])
    for rule, errors in found.items():
        less = np.array(errors) - found[RULES[0]]
        print(
            f"{rule}: {np.mean(errors):.5f} ± {np.std(errors, ddof=1):.5f}; less local "
            f"{less.mean():+.5f} ± {less.std(ddof=1) / math.sqrt(SEEDS):.5f} (standard error)"
        )
    print(f"nominal ε = {EPSILON:g}; without amplification {bounds[0]:.1f} to {bounds[1]:.1f}")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
    except HDPFLError as problem:
        sys.exit(f"error: {problem}")
