"""How much noise each update of a round carries, from the updates alone.

The model: the columns of the (d, n) matrix of updates share a low-rank signal and have each their
own noise, so that their Gram matrix over d is ΛΛᵀ + diag(σ²). That is factor analysis, and the
n × n Gram matrix is all it needs: one pass over the updates, whatever d is. Every estimator here
takes the updates and, where there are any, the same clients' updates of the round before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import StrategyError
from hdpfl_flower.factor_analysis import Matrix, Vector, effective_dimension, factor_analysis
from hdpfl_flower.head import (
    FORGED,
    SPOKEN,
    Head,
    Informed,
    informed,
    quietest_part,
    silent_squares,
)
from hdpfl_flower.residuals import heavy_tailed, residual_mad
from hdpfl_flower.robust_pca import blockwise_rpca
from hdpfl_flower.threads import one_thread

_BLOCK = 16_384
_SAMPLE = 20_000
"""Coordinates that the shape of a distribution is read from; more cost memory and add nothing."""
_LINE = 16
"""Coordinates drawn together: a cache line of float32."""

ESTIMATORS = ("auto", "factor-analysis", "residual-mad", "rpca", "column-norm", "temporal")
"""Every estimator by the name that users write."""

Updates = npt.NDArray[np.float32]


@dataclass(frozen=True)
class NoiseLevels:
    """The noise that an estimator found.

    Attributes:
        variances: σ² per coordinate, shape ``(n,)``, positive.
        method: the estimator that gave them; where ``auto`` was asked for, its choice.
        why: the reason for that choice, or what the values are worth.
        identified: False where signal cannot be told from noise: then the values are upper bounds.
    """

    variances: Vector
    method: str
    why: str
    identified: bool = True


def estimate_noise_levels(updates: Updates, method: str = "factor-analysis") -> Vector:
    """Return the variances of :func:`measure_noise`, shape ``(n,)``."""
    return measure_noise(updates, method).variances


def measure_noise(
    updates: Updates,
    method: str = "auto",
    previous: Updates | None = None,
    head: Head | None = None,
) -> NoiseLevels:
    """Return the noise variance per coordinate of each update.

    Args:
        updates: float32, shape ``(n, d)``, a client a row; no row of zeros.
        method: ``factor-analysis``; ``residual-mad`` (its residuals' middle: a sparse private
            signal does no harm); ``rpca`` (the paper's: principal component pursuit);
            ``column-norm`` (all of an update is taken for noise); ``temporal`` (the difference to
            ``previous``); or ``auto``: ``temporal`` where there is a round before, else
            ``residual-mad`` where the residuals are heavy-tailed, else ``factor-analysis``, and
            either of these with the silent sums of the ``head``.
        previous: the same clients' updates of the round before.
        head: where the model's softmax layer lies; None: not known, or no such layer.

    Returns:
        The levels. Two clients or fewer do not identify their noise in one round, unless there is
        a head, and get their mean squares: upper bounds.

    Raises:
        StrategyError: an unknown method, a row of zeros, or ``temporal`` without a round before.
    """
    if method not in ESTIMATORS:
        raise StrategyError(f"'{method}' is no estimator; choose one of {', '.join(ESTIMATORS)}")
    if not all(row.any() for row in updates):
        raise StrategyError("an update of zeros has no noise to estimate; leave it out")
    with one_thread():
        found = _measure(updates, method, previous)
    if method != "auto" or head is None or previous is not None:
        return found
    return _with_head(found, updates, head)


def second_moments(updates: npt.NDArray[np.floating]) -> Matrix:
    """Return the Gram matrix over d, float64, shape ``(n, n)``: one pass, in blocks."""
    n, d = updates.shape
    total = np.zeros((n, n))
    for start in range(0, d, _BLOCK):
        block = updates[:, start : start + _BLOCK]
        total += block @ block.T
    moments: Matrix = total / d
    return moments


def mean_squares(updates: Updates) -> Vector:
    """Return the mean square of each update, shape ``(n,)``."""
    return np.array([np.mean(np.square(row, dtype=np.float64)) for row in updates])


def sample_coordinates(updates: Updates, size: int) -> npt.NDArray[np.intp]:
    """Return about ``size`` coordinates, ascending, or all where there are no more.

    They are drawn in runs of a cache line, so that reading them takes no pass over the updates,
    and by a hash of what all clients sent: none of them can know before which ones count.
    """
    d = updates.shape[1]
    if d <= size + _LINE:
        return np.arange(d)
    glimpse = np.ascontiguousarray(updates[:, :: max(d // 256, 1)])
    generator = np.random.default_rng(list(hashlib.sha256(glimpse.tobytes()).digest()))
    lines = np.sort(generator.choice(d // _LINE, size // _LINE, replace=False))
    return (lines[:, None] * _LINE + np.arange(_LINE)).ravel()


def _measure(updates: Updates, method: str, previous: Updates | None) -> NoiseLevels:
    if method == "column-norm":
        return NoiseLevels(mean_squares(updates), method, "all of an update taken for noise")
    if method == "temporal" and previous is None:
        raise StrategyError("'temporal' needs the updates of the round before; choose auto")
    if method in ("auto", "temporal") and previous is not None:
        found = difference_levels(updates, previous)
        return NoiseLevels(found, "temporal", "differences of consecutive uploads")
    if len(updates) < 3:
        why = "fewer than 3 clients, upper bounds"
        return NoiseLevels(mean_squares(updates), "column-norm", why, identified=False)
    if method == "rpca":
        pursuit = blockwise_rpca(updates)
        return NoiseLevels(pursuit.variances, method, f"{pursuit.sweeps} sweeps")
    return _one_round(updates, method)


def _with_head(found: NoiseLevels, updates: Updates, head: Head) -> NoiseLevels:
    """Return one round's levels with the silent sums of the head."""
    n, d = updates.shape
    spoken = informed(
        found.variances,
        np.full(n, 2 / d),
        silent_squares(updates, head),
        np.full(n, 2 / (head.inputs + 1)),
        quietest_part(np.take(updates, sample_coordinates(updates, _SAMPLE), axis=1)),
    )
    notes = dict.fromkeys(head_notes(spoken))
    identified = found.identified or not spoken.forged.any()
    return NoiseLevels(spoken.variances, found.method, found.why + "".join(notes), identified)


def head_notes(spoken: Informed) -> list[str]:
    """Return what the head's part in each level was, for the journal; empty where it was little."""
    told = np.where(spoken.shares > 0.5, f"; {SPOKEN}", "")
    return [str(note) for note in np.where(spoken.forged, f"; {FORGED}", told)]


def _one_round(updates: Updates, method: str) -> NoiseLevels:
    """Return the levels by factor analysis, or by the MAD of its residuals."""
    sample = np.take(updates, sample_coordinates(updates, _SAMPLE), axis=1)
    moments = second_moments(updates)
    share = effective_dimension(sample, second_moments(sample)) / sample.shape[1]
    model = factor_analysis(moments, updates.shape[1], share * updates.shape[1])
    if model.identified:
        why = f"shared factors {model.loadings.shape[1]}"
    else:
        why = "more shared signal than so few clients tell from noise, upper bounds"
    if method != "factor-analysis":
        variances, scores = residual_mad(sample, model)
        if method == "residual-mad" or heavy_tailed(scores):
            tails = "heavy-tailed" if heavy_tailed(scores) else "normal"
            return NoiseLevels(
                variances, "residual-mad", f"{why}, {tails} residuals", model.identified
            )
    return NoiseLevels(model.variances, "factor-analysis", why, model.identified)


def difference_levels(
    updates: npt.NDArray[np.floating], previous: npt.NDArray[np.floating]
) -> Vector:
    """Return the noise variances from the differences of two consecutive rounds, shape ``(n,)``.

    A client's own signal hardly changes from a round to the next and cancels; what changes for
    many at once is taken out by factor analysis of the differences.
    """
    differences = (updates - previous) / np.sqrt(np.float32(2))
    moments = second_moments(differences)
    floor = 1e-12 * float(np.diag(second_moments(updates)).max())
    levels = np.maximum(np.diag(moments), floor)
    if len(updates) < 3 or not np.all(np.diag(moments) > floor):
        return levels
    return factor_analysis(moments, updates.shape[1]).variances
