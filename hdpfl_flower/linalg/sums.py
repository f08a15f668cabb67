"""Block sums over update coordinates, bitwise independent of threads."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hdpfl_flower.linalg.threads import one_thread
from hdpfl_flower.linalg.types import Matrix, Updates, Vector

BLOCK = 65_536
"""Coordinates per block, sized for the processor's cache."""
GRAM_BLOCK = 16_384
"""Coordinates per block of an n × n product."""


def square_sum(update: npt.NDArray[np.floating]) -> float:
    """Return ‖u‖² in float64, without a float64 copy.

    >>> square_sum(np.array([3.0, 4.0], dtype=np.float32))
    25.0
    """
    return sum(
        float(np.square(update[start : start + BLOCK], dtype=np.float64).sum())
        for start in range(0, len(update), BLOCK)
    )


def mean_squares(updates: Updates) -> Vector:
    """Return the mean square of each update, shape ``(n,)``."""
    return np.array([np.mean(np.square(row, dtype=np.float64)) for row in updates])


def exact_sum(
    scales: npt.NDArray[np.float64],
    updates: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """Return Σᵢ sᵢ·uᵢ over rows ``chosen`` (all: None), float64 ``(d,)``.

    One pass, row after row, without copies; blocks have the same bits as whole rows.

    >>> exact_sum(np.array([2.0]), np.array([[4.0], [8.0]], np.float32), np.array([1]))
    array([16.])
    """
    rows = np.arange(len(updates)) if chosen is None else chosen
    total = np.zeros(updates.shape[1])
    scaled = np.empty(min(BLOCK, len(total)))
    for start in range(0, len(total), BLOCK):
        piece = total[start : start + BLOCK]
        room = scaled[: len(piece)]
        for scale, row in zip(scales, rows, strict=True):
            block = updates[row, start : start + BLOCK]
            piece += np.multiply(block, scale, out=room, dtype=np.float64)
    return total


def weighted_sum(
    weights: npt.NDArray[np.float64], updates: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return Σᵢ wᵢ·uᵢ, shape ``(d,)``.

    Summed in float64, row after row: same bits for every number of threads and blocks.

    >>> weighted_sum(np.array([0.25, 0.75]), np.array([[4.0], [8.0]], dtype=np.float32))
    array([7.], dtype=float32)
    """
    result = np.empty(updates.shape[1], np.float32)
    for start in range(0, len(result), BLOCK):
        block = updates[:, start : start + BLOCK]
        total = np.zeros(block.shape[1])
        for weight, update in zip(weights, block, strict=True):
            total += weight * update.astype(np.float64)
        result[start : start + BLOCK] = total
    return result


def inner_products(updates: npt.NDArray[np.float32]) -> Matrix:
    """Return all uᵢ·uⱼ in one pass, float64, shape ``(n, n)``."""
    total = np.zeros((len(updates), len(updates)))
    with one_thread():
        for start in range(0, updates.shape[1], GRAM_BLOCK):
            block = updates[:, start : start + GRAM_BLOCK].astype(np.float64)
            total += block @ block.T
    return total


def second_moments(updates: npt.NDArray[np.floating]) -> Matrix:
    """Return the Gram matrix over d in one pass, float64 ``(n, n)``."""
    n, d = updates.shape
    total = np.zeros((n, n))
    for start in range(0, d, GRAM_BLOCK):
        block = updates[:, start : start + GRAM_BLOCK]
        total += block @ block.T
    moments: Matrix = total / d
    return moments
