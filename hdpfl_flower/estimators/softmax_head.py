"""Noise variance from softmax gradients, which sum to zero over classes.

The gradient of softmax and cross-entropy adds up to 0 over the classes, record by record, and so
does every clipped sum of them. So the sum of the last layer's rows over the classes is pure noise
in every update, also in the first round and for clients with few labels. These sums are the
*silent sums*.

The silent sums are few, one per input: their mean square has a relative error of √(2/(inputs + 1)).
An estimate from all coordinates has a smaller error, but may mistake signal for noise.
:func:`combine_with_head` weights the two by their disagreement. A client can forge a head without
noise, to seem quiet: no level falls below a quarter of the estimate from the rest of its update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.estimators.residual_mad import MAD_OF_NORMAL
from hdpfl_flower.models.networks import is_user_code
from hdpfl_flower.models.task import Task

BELIEVED = 4.0
"""Largest believed ratio of an update's remaining variance to its silent sums'.

On recorded updates of honest sites the rest was at most 4.8 times the noise (4 sites, 2 labels
each).
"""
HEAD_USED = "head: sums over the classes, which hold no signal"
FORGED = "head quieter than the rest of the update allows"
SURE_OF_HEAD = 0.04
"""Variance of a log silent mean square at which the head alone identifies.

It is reached at 49 inputs: then 95 % of q are below 1.083, for 2 to 40 clients of a spread of 1 to
1,000 (20,000 draws each).
"""
_STRETCH, _STRETCHES = 500, 16


@dataclass(frozen=True)
class Head:
    """Position of the last layer, linear into a softmax, in updates.

    Its weights lie class after class.

    Attributes:
        start: the first coordinate of the weights; the biases of the classes follow them.
        classes: number of classes.
        inputs: number of inputs of the layer.
    """

    start: int
    classes: int
    inputs: int


def head_of(spec: str, task: Task, shapes: Mapping[str, tuple[int, ...]]) -> Head | None:
    """Return the head of the model ``spec``; None for a regression or a user's own network.

    Args:
        spec: as in :func:`~hdpfl_flower.models.networks.build_model`.
        task: of the model.
        shapes: of the model's parameters, in their order.
    """
    if is_user_code(spec) or task.loss != "softmax" or len(shapes) < 2:
        return None
    weight, bias = list(shapes.values())[-2:]
    if len(weight) != 2 or bias != (weight[0],):
        return None
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    return Head(size - weight[0] * (weight[1] + 1), weight[0], weight[1])


@dataclass(frozen=True)
class HeadEstimate:
    """Noise levels combined from an estimator and silent sums.

    Attributes:
        variances: σ² per coordinate, shape ``(n,)``, positive.
        shares: the head's part in each, from 0 to 1, shape ``(n,)``.
        forged: whether the head is quieter than the rest of the update allows, shape ``(n,)``.
    """

    variances: npt.NDArray[np.float64]
    shares: npt.NDArray[np.float64]
    forged: npt.NDArray[np.bool_]


def combine_with_head(
    levels: npt.NDArray[np.float64],
    errors: npt.NDArray[np.float64],
    silent: npt.NDArray[np.float64],
    silent_errors: npt.NDArray[np.float64],
    quietest: npt.NDArray[np.float64],
) -> HeadEstimate:
    """Return an estimator's levels combined with the silent sums.

    Both are on a log scale. If they differ by more than both errors explain, the rest is
    the estimator's bias: its mean square over the sites (none counted for more than three standard
    errors) is added to the estimator's error, for a site beyond three standard errors its own; then
    each gets weight by its precision (DerSimonian and Laird, 1986, has the moments).

    Args:
        levels: an estimator's variances, shape ``(n,)``, positive; their bias is not known.
        errors: the variance of their logarithms without bias, shape ``(n,)``.
        silent: mean squares of the silent sums, shape ``(n,)``: unbiased for honest sites.
        silent_errors: the variance of their logarithms, shape ``(n,)``.
        quietest: the result of :func:`quietest_part`, shape ``(n,)``.

    Guarantees:
        No level is below 1/``BELIEVED`` of the lesser of ``levels`` and ``quietest`` because of
        the silent sums: a forged head gains a site no more weight than halving its noise.
    """
    least = np.minimum(levels, quietest) / BELIEVED
    forged = silent < least
    believed = np.log(np.maximum(silent, least)) - np.log(levels)
    chance = errors + silent_errors
    squares = np.square(believed)
    # The mean square of the differences beyond chance: τ² of DerSimonian and Laird.
    common = max(0.0, float(np.mean(np.minimum(squares, 9 * chance) - chance)))
    bias = np.where(squares > 9 * chance, np.maximum(squares - chance, common), common)
    # Precisions: 1/(errors + bias) for the estimator, 1/silent_errors for the silent sums.
    shares = (errors + bias) / (errors + bias + silent_errors)
    return HeadEstimate(levels * np.exp(shares * believed), shares, forged)


def head_notes(combined: HeadEstimate) -> list[str]:
    """Return a journal note per level decided by the head, else empty."""
    notes = np.where(combined.shares > 0.5, f"; {HEAD_USED}", "")
    return [str(note) for note in np.where(combined.forged, f"; {FORGED}", notes)]


def quietest_part(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the least noise in any stretch of each update, shape ``(n,)``.

    MAD² of stretches of 500 coordinates or more, 16 at most. Signal only adds to it (the median of
    |signal + noise| is least at signal 0: Anderson 1955), so for honest sites it is not below their
    noise, except by chance; for networks with quiet stretches it is close.

    Args:
        rows: float32, shape ``(n, d)``: updates, or some of their coordinates in order.
    """
    stretches = min(max(rows.shape[1] // _STRETCH, 1), _STRETCHES)
    parts = np.array_split(rows, stretches, axis=1)
    medians = np.array([_medians(np.abs(stretch)) for stretch in parts], dtype=np.float64)
    quietest: npt.NDArray[np.float64] = np.square(medians.min(axis=0) / MAD_OF_NORMAL)
    return quietest


def _medians(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return each row's median, bitwise as ``np.median``; modifies ``rows``.

    Only for finite numbers. Partitioned at one place, not three, in a twentieth of the time.
    """
    middle = rows.shape[1] // 2
    rows.partition(middle, axis=1)
    upper = rows[:, middle]
    if rows.shape[1] % 2:
        return upper
    medians: npt.NDArray[np.float32] = np.mean([rows[:, :middle].max(axis=1), upper], axis=0)
    return medians


def silent_squares(updates: npt.NDArray[np.float32], head: Head) -> npt.NDArray[np.float64]:
    """Return each update's mean square of silent sums ``(n,)``, row by row."""
    rows = (silent_sums(updates[i : i + 1], head) for i in range(len(updates)))
    return np.array([np.mean(np.square(row, dtype=np.float64)) for row in rows])


def silent_sums(updates: npt.NDArray[np.float32], head: Head) -> npt.NDArray[np.float32]:
    """Return the class sums over √classes: one coordinate's noise, no signal.

    Returns:
        float32, shape ``(n, inputs + 1)``.
    """
    # The variance of a sum over C classes is C times that of one coordinate: hence √C.
    middle = head.start + head.classes * head.inputs
    weights = updates[:, head.start : middle].reshape(len(updates), head.classes, head.inputs)
    biases = updates[:, middle : middle + head.classes, None]
    sums = np.concatenate([block.sum(1, dtype=np.float64) for block in (weights, biases)], axis=1)
    silent: npt.NDArray[np.float32] = (sums / np.sqrt(head.classes)).astype(np.float32)
    return silent
