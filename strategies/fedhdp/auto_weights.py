"""Level weights from the updates: ``level-ratio = auto``, and ``precision`` for comparison.

``auto`` weighs the part of the means that lies in the span of earlier updates of opted-out clients
and the rest each on its own (``span.py``), by what noise, spread and drift there say
(``level_gaps.py``, ``levels.drift_weights``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.privacy.central_dp import CentralPlan, mean_variance
from strategies.fedhdp.level_gaps import (
    Averages,
    MovingAverage,
    average,
    observe,
    observe_gaps,
    observed_gaps,
    sampling_gaps,
    spread,
    sure_gaps,
)
from strategies.fedhdp.levels import drift_weights, precision_weights
from strategies.fedhdp.span import Span

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


STEEPNESS = 10
"""Cost of bias relative to noise: bias between levels lies where clients differ, and there the loss
is steep; noise lies in all directions, most of them flat."""


@dataclass(frozen=True)
class AutoState:
    """State of ``auto`` and ``precision`` between rounds.

    Attributes:
        averages: of the spread within levels and the gaps between them, by part and kind.
        kept: earlier updates of opted-out clients, which span the part where updates vary.
    """

    averages: dict[str, MovingAverage] = field(default_factory=dict)
    kept: Floats | None = None


@dataclass(frozen=True)
class RoundCounts:
    """Clients of a round, a number a level, shape ``(l,)``.

    Attributes:
        counts: updates received.
        totals: clients of the run.
        present: whether the level counts at all in this round.
        horizon: H, the rounds planned.
    """

    counts: Floats
    totals: Floats
    present: npt.NDArray[np.bool_]
    horizon: int


@dataclass(frozen=True)
class PartStatistics:
    """Observations of one part of the updates, by level.

    Attributes:
        spreads: variance of one update about its level's mean, NaN where it is not seen, ``(l,)``.
        known: variance of the level's mean where its noise is known, else NaN, ``(l,)``.
        distances: squared distances of the levels' means, ``(l, l)``.
    """

    spreads: Floats
    known: Floats
    distances: Floats

    def less(self, other: PartStatistics) -> PartStatistics:
        """Return the part orthogonal to ``other``, a subspace of this part."""
        return PartStatistics(
            np.maximum(self.spreads - other.spreads, 0.0),
            self.known - other.known,
            np.maximum(self.distances - other.distances, 0.0),
        )


@dataclass(frozen=True)
class KnownVariances:
    """Variances of the levels' means by the plan, shape ``(l,)`` each; NaN if unknown.

    Attributes:
        constant: S²/(qN), of the clients that a round samples.
        each: of the noise of each coordinate.
    """

    constant: Floats
    each: Floats

    def of(self, size: int) -> Floats:
        """Return the variances of vectors of ``size`` coordinates."""
        return self.constant + size * self.each


def known_variances(plan: CentralPlan | None, clip_norm: float, levels: int) -> KnownVariances:
    """Return the plan's variance of each level's mean."""
    constant, each = np.full(levels, np.nan), np.full(levels, np.nan)
    for j, level in enumerate(plan.levels if plan else ()):
        if level.clients and level.private:
            # d = 0 leaves S²/(qN); the difference to d = 1 is the noise of one coordinate.
            constant[j] = mean_variance(level, clip_norm, 0)
            each[j] = mean_variance(level, clip_norm, 1) - constant[j]
    return KnownVariances(constant, each)


def measure_part(
    rows: Mapping[int, npt.NDArray[np.floating]], means: Floats, known: Floats
) -> PartStatistics:
    """Return the observations of one part of the updates.

    Args:
        rows: updates of each level whose noise is not known, as they went into its mean.
        means: of each level, shape ``(l, size)``.
        known: see :class:`PartStatistics`.
    """
    spreads = np.full(len(means), np.nan)
    for level, some in rows.items():
        spreads[level] = spread(some, means[level])
    return PartStatistics(spreads, known, observed_gaps(means, np.zeros(len(means))))


def weigh_part(
    averages: Averages,
    name: str,
    part: PartStatistics,
    crowd: RoundCounts,
    *,
    by_noise_alone: bool = False,
) -> tuple[Averages, Floats | None]:
    """Return the weights of a part, ``(l,)``; None if too little is known.

    Args:
        averages: of earlier rounds.
        name: of the part, under which its averages are kept.
        part: what this round shows.
        crowd: who it is about.
        by_noise_alone: precision weights, which know no bias.
    """
    levels = len(crowd.counts)
    averages = observe(averages, f"{name}-spread", part.spreads, np.isfinite(part.spreads))
    spreads = average(averages, f"{name}-spread", (levels,))
    with np.errstate(divide="ignore", invalid="ignore"):
        # V of a level's mean: from the plan where it is known, else the spread over the updates.
        variances = np.where(np.isfinite(part.known), part.known, spreads / crowd.counts)
    known = crowd.present & np.isfinite(variances)
    safe = np.where(np.isfinite(variances), variances, 0.0)
    # E‖Δ̃ⱼ − Δ̃ₖ‖² = Dⱼₖ² + Vⱼ + Vₖ.
    gaps = part.distances - safe[:, None] - safe[None]
    np.fill_diagonal(gaps, 0.0)
    averages = observe_gaps(averages, f"{name}-gap", gaps, known[:, None] & known[None])
    if known.sum() < max(crowd.present.sum(), 2):
        return averages, None
    here = np.flatnonzero(crowd.present)
    weights = np.zeros(levels)
    if by_noise_alone:
        weights[here] = precision_weights(variances[here])
        return averages, weights
    sampled = np.nan_to_num(spreads / np.maximum(crowd.totals, 1))
    gaps = np.maximum(
        STEEPNESS * sure_gaps(averages, f"{name}-gap", levels), sampling_gaps(sampled)
    )
    shares = crowd.totals[here] / crowd.totals[here].sum()
    weights[here] = drift_weights(variances[here], gaps[np.ix_(here, here)], shares, crowd.horizon)
    return averages, weights


def auto_mean(
    state: AutoState,
    rows: Mapping[int, npt.NDArray[np.float32]],
    means: Floats,
    known: KnownVariances,
    crowd: RoundCounts,
    everybody: Floats,
) -> tuple[AutoState, Floats, Floats]:
    """Return the state, the weights where updates vary, and the mean over the levels, ``(d,)``.

    Args:
        state: as the last round left it.
        rows: see :func:`seen`.
        means: of each level, shape ``(l, d)``.
        known: variances of the levels' means besides the spread.
        crowd: the clients of the round.
        everybody: the weights of a plain mean, while too little is known.
    """
    span, size = Span(state.kept, means.shape[1]), means.shape[1]
    averages: Averages = state.averages
    # Noise is alike in all directions: it counts d times in the whole, k times in the span.
    whole = measure_part(rows, means, known.of(size))
    if not span.rank:
        averages, weights = weigh_part(averages, "whole", whole, crowd)
        weights = everybody if weights is None else weights
        return replace(state, averages=dict(averages)), weights, weights @ means
    inner = span.inside(means)
    inside = measure_part(
        {level: span.inside(some) for level, some in rows.items()},
        inner,
        known.of(span.rank),
    )
    averages, within = weigh_part(averages, "inside", inside, crowd)
    averages, without = weigh_part(averages, "outside", whole.less(inside), crowd)
    within = everybody if within is None else within
    without = everybody if without is None else without
    # The weights `within` inside the span and `without` outside of it, in one sum.
    bent = span.lift(((within - without) @ inner)[None])[0]
    return replace(state, averages=dict(averages)), within, without @ means + bent
