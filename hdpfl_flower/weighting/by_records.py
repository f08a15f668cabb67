"""Weights of a round's updates: by declared records, and weights that differ by class row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.sums import weighted_sum
from hdpfl_flower.updates import Outcome, RowWeights

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

MAX_SHARE = 10.0
"""A declared size counts at most this many times the median: a lie buys no more."""


def record_weights(declared: Floats) -> Floats:
    """Return weights wᵢ ∝ min(Nᵢ, 10 · median N), shape ``(n,)``.

    >>> record_weights(np.array([100.0, 300.0]))
    array([0.25, 0.75])
    """
    # The median, not the mean: up to half of the sites may overstate their size without moving the
    # cap beyond an honest one.
    capped: Floats = np.minimum(declared, MAX_SHARE * np.median(declared))
    return capped / float(capped.sum())


def stretches(head: Head, size: int) -> Iterator[tuple[int, slice]]:
    """Yield each block's number and a stretch of its coordinates; together they cover all.

    Args:
        head: where the class rows lie.
        size: d, numbers of the model.

    >>> [(block, s.start, s.stop) for block, s in stretches(Head(1, 2, 3), 9)]
    [(2, 0, 1), (0, 1, 4), (1, 4, 7), (0, 7, 8), (1, 8, 9)]
    """
    middle = head.start + head.classes * head.inputs
    if head.start:
        yield head.classes, slice(0, head.start)
    for row in range(head.classes):
        start = head.start + row * head.inputs
        yield row, slice(start, start + head.inputs)
    for row in range(head.classes):
        yield row, slice(middle + row, middle + row + 1)
    if middle + head.classes < size:
        yield head.classes, slice(middle + head.classes, size)


def weighted_rows(weights: RowWeights, updates: Rows) -> Rows:
    """Return the sum of the updates by the weights of each block, float32, shape ``(d,)``.

    Each block has the bits of :func:`~hdpfl_flower.linalg.sums.weighted_sum`.
    """
    total = np.empty(updates.shape[1], np.float32)
    factors = weights.scales[:, None] * weights.shares
    for block, stretch in stretches(weights.head, updates.shape[1]):
        total[stretch] = weighted_sum(factors[block], updates[:, stretch])
    return total


def by_rows(weights: RowWeights, update: Rows, gauges: Mapping[str, float | Floats]) -> Outcome:
    """Return the outcome; its ``weights`` and ``scale`` are the means over the coordinates.

    Args:
        weights: of the round.
        update: their sum, shape ``(d,)``.
        gauges: for the journal.
    """
    sizes = np.zeros(len(weights.scales))
    for block, stretch in stretches(weights.head, len(update)):
        sizes[block] += stretch.stop - stretch.start
    factors = (sizes * weights.scales) @ weights.shares / len(update)
    scale = float(factors.sum())
    return Outcome(update, factors / scale, gauges, scale, weights)


def part_of(outcome: Outcome, site: int, row: Rows) -> Rows:
    """Return the part of a site's update in a round's, float32, shape ``(d,)``.

    Args:
        outcome: of a strategy that declares a weighted sum.
        site: its place in the round.
        row: its update, shape ``(d,)``.
    """
    weights = outcome.row_weights
    if weights is None:
        return np.float32(outcome.scale * outcome.weights[site]) * row
    added, factors = np.empty_like(row), weights.scales * weights.shares[:, site]
    for block, stretch in stretches(weights.head, len(row)):
        added[stretch] = np.float32(factors[block]) * row[stretch]
    return added
