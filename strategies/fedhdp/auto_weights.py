"""What levels count where the updates say it: ``level-ratio = auto``, and ``precision`` beside it.

``auto`` weighs the part of the means that lies in the span of earlier updates of opted-out clients
and the rest each on its own (``span.py``), by what noise, spread and drift there say
(``level_gaps.py``, ``levels.drift_weights``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdpfl_flower.privacy.central_dp import CentralPlan, mean_variance
from strategies.fedhdp.level_gaps import (
    average,
    observe,
    observe_gaps,
    observed_gaps,
    sampling_gaps,
    spread,
    sure_gaps,
)
from strategies.fedhdp.span import Span
from strategies.fedhdp.levels import drift_weights, precision_weights

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
State = Mapping[str, Floats]


STEEPNESS = 10
"""A unit of bias between levels that differ costs as much as so many of noise: it lies where
clients differ, and there the loss is steep; noise lies in all directions, most of them flat."""


@dataclass(frozen=True)
class Crowd:
    """Who a round is about, a number a level, shape ``(l,)``.

    Attributes:
        counts: updates that came.
        totals: clients of the run.
        present: whether the level counts at all in this round.
        horizon: H, the rounds planned.
    """

    counts: Floats
    totals: Floats
    present: npt.NDArray[np.bool_]
    horizon: int


@dataclass(frozen=True)
class Part:
    """What a round shows of one part of the updates, by level.

    Attributes:
        spreads: variance of one update about its level's mean, NaN where it is not seen, ``(l,)``.
        known: variance of the level's mean where its noise is known, else NaN, ``(l,)``.
        distances: squared distances of the levels' means, ``(l, l)``.
    """

    spreads: Floats
    known: Floats
    distances: Floats

    def less(self, other: Part) -> Part:
        """Return the part that is orthogonal to ``other``, which lies within this one."""
        return Part(
            np.maximum(self.spreads - other.spreads, 0.0),
            self.known - other.known,
            np.maximum(self.distances - other.distances, 0.0),
        )


def known_variances(
    plan: CentralPlan | None, clip_norm: float, levels: int
) -> tuple[Floats, Floats]:
    """Return what the plan says of the variance of each level's mean; NaN where nothing.

    That is S²/(qN) for the clients that a round samples, and the noise of each coordinate.
    """
    constant, each = np.full(levels, np.nan), np.full(levels, np.nan)
    for j, level in enumerate(plan.levels if plan else ()):
        if level.clients and level.private:
            constant[j] = mean_variance(level, clip_norm, 0)
            each[j] = mean_variance(level, clip_norm, 1) - constant[j]
    return constant, each


def seen(rows: Mapping[int, npt.NDArray[np.floating]], means: Floats, known: Floats) -> Part:
    """Return what the updates show of a part.

    Args:
        rows: updates of each level whose noise is not known, as they went into its mean.
        means: of each level, shape ``(l, size)``.
        known: see :class:`Part`.
    """
    spreads = np.full(len(means), np.nan)
    for level, some in rows.items():
        spreads[level] = spread(some, means[level])
    return Part(spreads, known, observed_gaps(means, np.zeros(len(means))))


def weigh_part(
    state: State, name: str, part: Part, crowd: Crowd, *, by_noise_alone: bool = False
) -> tuple[State, Floats | None]:
    """Return the weights of a part, shape ``(l,)``; None while too little is known of a level.

    Args:
        state: the averages of earlier rounds.
        name: of the part, under which its averages are kept.
        part: what this round shows.
        crowd: who it is about.
        by_noise_alone: precision weights, which know no bias.
    """
    levels = len(crowd.counts)
    state = observe(state, f"{name}-spread", part.spreads, np.isfinite(part.spreads))
    spreads = average(state, f"{name}-spread", (levels,))
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = np.where(np.isfinite(part.known), part.known, spreads / crowd.counts)
    known = crowd.present & np.isfinite(variances)
    safe = np.where(np.isfinite(variances), variances, 0.0)
    gaps = part.distances - safe[:, None] - safe[None]
    np.fill_diagonal(gaps, 0.0)
    state = observe_gaps(state, f"{name}-gap", gaps, known[:, None] & known[None])
    if known.sum() < max(crowd.present.sum(), 2):
        return state, None
    here = np.flatnonzero(crowd.present)
    weights = np.zeros(levels)
    if by_noise_alone:
        weights[here] = precision_weights(variances[here])
        return state, weights
    sampled = np.nan_to_num(spreads / np.maximum(crowd.totals, 1))
    gaps = np.maximum(STEEPNESS * sure_gaps(state, f"{name}-gap", levels), sampling_gaps(sampled))
    shares = crowd.totals[here] / crowd.totals[here].sum()
    weights[here] = drift_weights(variances[here], gaps[np.ix_(here, here)], shares, crowd.horizon)
    return state, weights


def auto_mean(
    state: State,
    rows: Mapping[int, npt.NDArray[np.float32]],
    means: Floats,
    known: tuple[Floats, Floats],
    crowd: Crowd,
    everybody: Floats,
) -> tuple[State, Floats, Floats]:
    """Return the state, the weights where updates vary, and the mean over the levels, ``(d,)``.

    Args:
        state: as the last round left it; see ``level_span.keep_span`` for what it needs.
        rows: see :func:`seen`.
        means: of each level, shape ``(l, d)``.
        known: for a vector and for each of its directions: what is known of the variance of the
            levels' means besides the spread, NaN where it is to be seen; the first is all that
            does not come from noise alike in all directions.
        crowd: who came.
        everybody: the weights of a plain mean, while too little is known.
    """
    span, size = Span(state, means.shape[1]), means.shape[1]
    constant, each = known
    whole = seen(rows, means, constant + size * each)
    if not span.rank:
        state, weights = weigh_part(state, "whole", whole, crowd)
        weights = everybody if weights is None else weights
        return state, weights, weights @ means
    inner = span.inside(means)
    inside = seen(
        {level: span.inside(some) for level, some in rows.items()},
        inner,
        constant + span.rank * each,
    )
    state, within = weigh_part(state, "inside", inside, crowd)
    state, without = weigh_part(state, "outside", whole.less(inside), crowd)
    within = everybody if within is None else within
    without = everybody if without is None else without
    bent = span.lift(((within - without) @ inner)[None])[0]
    return state, within, without @ means + bent
