"""Synthetic first updates of a softmax layer: clients with labels, inputs and groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.types import Updates

CLASSES, INPUTS = 10, 40
HEAD = Head(0, CLASSES, INPUTS)

Shares = npt.NDArray[np.float64]


def class_means(seed: int) -> npt.NDArray[np.float64]:
    """Return the mean features of each class: a common part and its own, mean square below 1."""
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(INPUTS)
    return 0.6 * common + 0.6 * generator.standard_normal((CLASSES, INPUTS))


def update_of(shares: Shares, means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return Σ_y s_y·(e_y − 1/C) ⊗ (μ_y, 1), class after class, then the biases."""
    errors = np.eye(CLASSES) - 1 / CLASSES
    weights = errors @ (shares[:, None] * means)
    return np.concatenate([weights.ravel(), errors @ shares])


def noised(rows: Sequence[npt.NDArray[np.float64]], noise: float, seed: int) -> Updates:
    generator = np.random.default_rng([seed, 1])
    clean = np.array(rows)
    return (clean + noise * generator.standard_normal(clean.shape)).astype(np.float32)


def of_classes(number: int, clients: int, seed: int) -> list[Shares]:
    """Return shares of clients that hold so many classes each, all alike."""
    generator = np.random.default_rng([seed, 2])
    drawn = [generator.permutation(CLASSES)[:number] for _ in range(clients)]
    return [np.isin(range(CLASSES), one) / number for one in drawn]


def drawn_shares(alpha: float, clients: int, seed: int) -> list[Shares]:
    return list(np.random.default_rng([seed, 3]).dirichlet(np.full(CLASSES, alpha), clients))


def two_profiles(clients: int) -> list[Shares]:
    """Return shares of clients that hold the first half of the classes, or the second."""
    halves = [np.arange(CLASSES) < CLASSES // 2, np.arange(CLASSES) >= CLASSES // 2]
    return [halves[i % 2] / (CLASSES // 2) for i in range(clients)]


def relabelled(groups: Sequence[int], seed: int) -> list[npt.NDArray[np.float64]]:
    """Return each client's class means: of group g class y looks like class y − g."""
    means = class_means(seed)
    return [np.roll(means, group, axis=0) for group in groups]


def swapped(groups: Sequence[int], seed: int) -> list[npt.NDArray[np.float64]]:
    """Return each client's class means: group 1 takes the first two classes for each other."""
    means = class_means(seed)
    other = means[[1, 0, *range(2, CLASSES)]]
    return [other if group else means for group in groups]


def turned(groups: Sequence[int], seed: int) -> list[npt.NDArray[np.float64]]:
    """Return each client's class means: every group sees the inputs in another order."""
    means = class_means(seed)
    orders = [
        np.random.default_rng([seed, 4, g]).permutation(INPUTS) for g in range(max(groups) + 1)
    ]
    return [means[:, orders[group]] for group in groups]
