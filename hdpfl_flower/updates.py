"""What an aggregation rule sees, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.softmax_head import Head

_BLOCK = 65_536
"""Coordinates summed at a time: they stay in the processor's cache."""

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundUpdates:
    """The updates of one round that passed every check, a site a row.

    Attributes:
        server_round: from 1.
        sites: names, in the one order that everything follows.
        updates: float32, shape ``(n, d)``; local model − global model. Not to be written to.
        disclosed: what the sites disclosed and the rule asked for, each shape ``(n,)``; NaN where
            a site does not disclose what the rule can do without.
        head: where the model's softmax layer lies, if it has one.
        group: under rules with several models the model that each site trained, shape ``(n,)``.
        chose: under such rules, whether the site chose it, privately, shape ``(n,)``.
        squares: ‖u‖² of each row, shape ``(n,)``, as :func:`square_sum` gives it: what was found
            when the row came, so that who clips reads it no second time. None: nobody looked.
    """

    server_round: int
    sites: tuple[str, ...]
    updates: npt.NDArray[np.float32]
    disclosed: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    head: Head | None = None
    group: npt.NDArray[np.int64] | None = None
    chose: npt.NDArray[np.bool_] | None = None
    squares: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a rule makes of a round.

    Attributes:
        update: float32, shape ``(d,)``; added to the global model. Under rules with several models
            shape ``(M, d)``, a row a model.
        weights: float64, shape ``(n,)``; each site's share of its model.
        gauges: numbers worth a look, for the journal: a float, or an array of shape ``(n,)``.
        scale: ``update`` is ``scale``·Σᵢ wᵢuᵢ, where the rule's ``is_weighted_sum`` says so.
        group: the model that each site's update went into, shape ``(n,)``; None: there is one.
    """

    update: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float64]
    gauges: Mapping[str, float | npt.NDArray[np.float64]] = field(default_factory=dict)
    scale: float = 1.0
    group: npt.NDArray[np.int64] | None = None


def square_sum(update: npt.NDArray[np.floating]) -> float:
    """Return ‖u‖² of a vector, summed in float64, without a copy of it in float64.

    >>> square_sum(np.array([3.0, 4.0], dtype=np.float32))
    25.0
    """
    return sum(
        float(np.square(update[start : start + _BLOCK], dtype=np.float64).sum())
        for start in range(0, len(update), _BLOCK)
    )


def exact_sum(
    scales: npt.NDArray[np.float64],
    updates: npt.NDArray[np.float32],
    chosen: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """Return Σᵢ sᵢ·uᵢ over the rows ``chosen`` (all: None), float64, shape ``(d,)``.

    In one pass, row after row, without a copy of any: blocks give the same bits as whole rows.

    >>> exact_sum(np.array([2.0]), np.array([[4.0], [8.0]], np.float32), np.array([1]))
    array([16.])
    """
    rows = np.arange(len(updates)) if chosen is None else chosen
    total = np.zeros(updates.shape[1])
    scaled = np.empty(min(_BLOCK, len(total)))
    for start in range(0, len(total), _BLOCK):
        part = total[start : start + _BLOCK]
        room = scaled[: len(part)]
        for scale, row in zip(scales, rows, strict=True):
            block = updates[row, start : start + _BLOCK]
            part += np.multiply(block, scale, out=room, dtype=np.float64)
    return total


def weighted_sum(
    weights: npt.NDArray[np.float64], updates: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Return Σᵢ wᵢ·uᵢ, shape ``(d,)``.

    Summed in float64, row after row: every number of threads, and of blocks, gives the same bits.

    >>> weighted_sum(np.array([0.25, 0.75]), np.array([[4.0], [8.0]], dtype=np.float32))
    array([7.], dtype=float32)
    """
    result = np.empty(updates.shape[1], np.float32)
    for start in range(0, len(result), _BLOCK):
        block = updates[:, start : start + _BLOCK]
        total = np.zeros(block.shape[1])
        for weight, update in zip(weights, block, strict=True):
            total += weight * update.astype(np.float64)
        result[start : start + _BLOCK] = total
    return result
