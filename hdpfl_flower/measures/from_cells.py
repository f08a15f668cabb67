"""Measures from noisy score counts, with intervals that cover the noise.

Discrimination and calibration.

Sites count their held-out records in the cells of ``score_cells.py`` and add N(0, zᵢ²) to each; the
server sums the counts. Every cell h̃ of the sum has the variance σ² = Σ zᵢ², which the empty cells
estimate, and as a count of records the variance h besides (Poisson), which h̃ estimates.

Each measure θ is the zero of a function G(θ) of the counts. Over noise and records the mean of G
is 0 at the true θ: of AUROC G(θ) = U − θ·P·N with U the pairs ranked right, ties within a bin by
half, and P and N the sums of the classes, so that products are of independent noises. The interval
holds all θ with G(θ)² ≤ t²·V(θ), V the variance of G (Fieller, Suppl. J. R. Stat. Soc. 1940, and
Godambe's estimating functions for calibration): no division by a noisy number, so it is right
even if the noise of P and N is not small. t has the degrees of freedom with which σ is known. The
value itself is a ratio, whose bias to second order, Cov(G, W)/W² with W = P·N, is taken off.

All measures take a bin's records at the bin's middle, an error outside the intervals: it takes .001
to .004 from AUROC, .01 where half of the scores are below 1 % or all lie within one logit, and
moves the Brier score by less than .001.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, stdtrit

from hdpfl_flower.measures.bootstrap import Estimate, Floats
from hdpfl_flower.measures.score_cells import BINS, CELLS, EMPTY, LOGITS, MIDDLES

OF_CELLS = ("auroc", "brier", "calibration-slope", "calibration-intercept", "accuracy")
"""Measures available from score cells, in the order of tables."""
_ONE_CLASS = (
    "the noise hides how many records of each class there are; hold out more records, or raise "
    "the share of 'scores' in the next run"
)
_UNLIMITED = "these counts and their noise do not limit it within {low:g} and {high:g}"
_SHARES = np.linspace(0, 1, 10_001)
_SLOPES, _INTERCEPTS = np.linspace(-2, 6, 801), np.linspace(-6, 6, 1201)
_HALVINGS = 40

_ABOVE: Floats = np.tri(BINS, k=-1) + np.eye(BINS) / 2
"""Rank order of bins, class 1 (row) above 0 (column): 1, ½ or 0."""


@dataclass(frozen=True)
class NoisyCells:
    """Sum of the sites' noisy counts.

    Attributes:
        zeros: class 0 by bin, shape ``(BINS,)``; may be negative.
        ones: class 1, likewise.
        variance: σ² of the noise in each of them, estimated; 0 without noise.
        freedom: degrees of freedom of its estimate; ∞ without noise.
    """

    zeros: Floats
    ones: Floats
    variance: float
    freedom: float

    @staticmethod
    def of_sites(counts: Floats) -> NoisyCells:
        """Return the sum of ``counts``, shape ``(sites, CELLS)``, at least one site.

        σ² is the sum of the sites' own variances, each the mean square of its empty cells; its
        degrees of freedom are Satterthwaite's (Biometrics Bulletin 1946).
        """
        rows = counts.astype(np.float64).reshape(-1, CELLS)
        variances = np.square(rows[:, 2 * BINS :]).mean(1)
        total, freedom = float(variances.sum()), math.inf
        if total > 0:
            freedom = EMPTY * total**2 / float(np.square(variances).sum())
        summed = rows.sum(0)
        return NoisyCells(summed[:BINS], summed[BINS : 2 * BINS], total, freedom)

    @property
    def records(self) -> float:
        """Number of records, with noise."""
        return float(self.zeros.sum() + self.ones.sum())

    @property
    def noise(self) -> float:
        """σ, the standard deviation of the noise in a cell."""
        return math.sqrt(self.variance)

    def reach(self, level: float) -> float:
        """Return t of two-sided intervals of ``level``."""
        return float(stdtrit(self.freedom, (1 + level) / 2))


@dataclass(frozen=True)
class FromCells:
    """Measures of noisy counts.

    Attributes:
        estimates: measure → value and interval.
        missing: measure → reason why these counts do not give it.
    """

    estimates: dict[str, Estimate]
    missing: dict[str, str]


def measure_cells(cells: NoisyCells, level: float = 0.95) -> FromCells:
    """Return :data:`OF_CELLS` of ``cells``, each with an interval of ``level``.

    No measure has a value if the noise hides the size of a class: if one of the sums lies
    within t of its noise from 0.
    """
    reach = cells.reach(level)
    least = reach * cells.noise * math.sqrt(BINS)
    if not min(cells.zeros.sum(), cells.ones.sum()) > least:
        return FromCells({}, dict.fromkeys(OF_CELLS, _ONE_CLASS))
    right = np.repeat([0.0, 1.0], BINS // 2)
    estimates = {
        "auroc": _auroc(cells, reach),
        "brier": _mean(cells, MIDDLES**2, (1 - MIDDLES) ** 2, reach),
        "calibration-slope": _slope(cells, reach),
        "calibration-intercept": _intercept(cells, reach),
        "accuracy": _mean(cells, 1 - right, right, reach),
    }
    ends = {"calibration-slope": _SLOPES, "calibration-intercept": _INTERCEPTS}
    missing = {
        name: _UNLIMITED.format(low=ends[name][0], high=ends[name][-1])
        for name, estimate in estimates.items()
        if None in estimate.facts().values()
    }
    return FromCells({n: e for n, e in estimates.items() if n not in missing}, missing)


def _variances(cells: NoisyCells) -> tuple[Floats, Floats]:
    """Return each cell's variance over noise and records, by class."""
    # Counts below 0 are noise: without the bound a sum of few records could get variance 0.
    return tuple(cells.variance + np.maximum(h, 0) for h in (cells.zeros, cells.ones))  # type: ignore[return-value]


def _auroc(cells: NoisyCells, reach: float) -> Estimate:
    """Return the AUROC of the bins: P(a case's bin is higher).

    G(θ) = Σ p̃ⱼ·ñₖ·(sⱼₖ − θ) is bilinear in independent numbers. Its variance is that of the terms
    linear in each, plus Q = Σ vⱼ·vₖ·(sⱼₖ − θ)²; with noisy numbers in the place of the true ones
    each of the two linear sums contains Q once more in the mean, so that Q is taken off.
    """
    n, p = cells.zeros, cells.ones
    of_zeros, of_ones = _variances(cells)
    right, pairs = float(p @ _ABOVE @ n), float(p.sum() * n.sum())
    below, above = _ABOVE @ n, p @ _ABOVE

    linear = _squares(of_ones, below, n.sum()) + _squares(of_zeros, above, p.sum())
    q = np.array(
        [
            of_ones.sum() * of_zeros.sum(),
            -2 * of_ones @ _ABOVE @ of_zeros,
            of_ones @ _ABOVE**2 @ of_zeros,
        ]
    )

    def variance(theta: Floats) -> Floats:
        # In the mean the linear sums are V + Q, and V contains Q itself: at least their half.
        mean = np.polyval(linear, theta)
        bounded: Floats = np.maximum(mean - np.polyval(q, theta), mean / 2)
        return bounded

    ratio = right / pairs
    lead = (below - ratio * n.sum()) @ of_ones * n.sum()
    lead += (above - ratio * p.sum()) @ of_zeros * p.sum()
    lead -= float((of_ones @ (_ABOVE - ratio)) @ of_zeros)
    return _share(ratio + lead / pairs**2, lambda theta: right - theta * pairs, variance, reach)


def _mean(cells: NoisyCells, of_zeros: Floats, of_ones: Floats, reach: float) -> Estimate:
    """Return the record mean of per-cell values in [0, 1]."""
    weights = np.concatenate([of_zeros, of_ones])
    counts = np.concatenate([cells.zeros, cells.ones])
    variances = np.concatenate(_variances(cells))
    total, number = float(weights @ counts), float(counts.sum())
    ratio = total / number
    value = ratio + float((weights - ratio) @ variances) / number**2
    squares = _squares(variances, weights, 1.0)

    def variance(theta: Floats) -> Floats:
        return np.asarray(np.polyval(squares, theta), np.float64)

    return _share(value, lambda theta: total - theta * number, variance, reach)


def _squares(variances: Floats, numbers: Floats, factor: float) -> Floats:
    """Return Σ v·(a − θ·b)² as polynomial coefficients in θ; b is scalar."""
    first = -2 * factor * float(variances @ numbers)
    squares = [factor**2 * variances.sum(), first, variances @ numbers**2]
    return np.array(squares)


def _share(
    value: float,
    function: Callable[[Floats], Floats],
    variance: Callable[[Floats], Floats],
    reach: float,
) -> Estimate:
    """Return ``value`` with the allowed θ in [0, 1], plus a grid step."""
    inside = _SHARES[np.square(function(_SHARES)) <= reach**2 * variance(_SHARES)]
    value, step = min(max(value, 0.0), 1.0), _SHARES[1]
    low, high = (inside[0] - step, inside[-1] + step) if len(inside) else (value, value)
    return Estimate(value, max(0.0, min(float(low), value)), min(1.0, max(float(high), value)))


def _residuals(shares: Floats) -> tuple[Floats, Floats]:
    """Return y − share of class 0 and of class 1 in each bin."""
    return -shares, 1 - shares


def _intercept(cells: NoisyCells, reach: float) -> Estimate:
    """Return the intercept a of logit P(y = 1) = a + x.

    x is a bin's logit; the score equation is linear in h̃.
    """
    of_zeros, of_ones = _variances(cells)
    low, high = _residuals(expit(_INTERCEPTS[:, None] + LOGITS))
    score = low @ cells.zeros + high @ cells.ones
    variance = low**2 @ of_zeros + high**2 @ of_ones
    return _zero(_INTERCEPTS, score, variance, reach)


def _slope(cells: NoisyCells, reach: float) -> Estimate:
    """Return the slope b of logit P(y = 1) = a + b·x.

    Its score is taken where a solves its own equation.

    The variance is that of the part of b's score that a's does not explain (Neyman's C(α)).
    """
    of_zeros, of_ones = _variances(cells)
    counts, slopes = cells.zeros + cells.ones, _SLOPES[:, None]
    intercepts = np.zeros((len(_SLOPES), 1))
    low, high = intercepts - 50, intercepts + 50
    for _ in range(_HALVINGS):  # bisection: noise makes the equation no longer monotone
        of_zero, of_one = _residuals(expit(intercepts + slopes * LOGITS))
        too_low = (of_zero @ cells.zeros + of_one @ cells.ones)[:, None] > 0
        low, high = np.where(too_low, intercepts, low), np.where(too_low, high, intercepts)
        intercepts = (low + high) / 2
    shares = expit(intercepts + slopes * LOGITS)
    of_zero, of_one = _residuals(shares)
    weights = shares * (1 - shares) * counts
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = (weights @ LOGITS / weights.sum(1))[:, None]
    around = np.where(np.isfinite(centre), LOGITS - centre, LOGITS)
    score = (of_zero * around) @ cells.zeros + (of_one * around) @ cells.ones
    variance = (of_zero * around) ** 2 @ of_zeros + (of_one * around) ** 2 @ of_ones
    return _zero(_SLOPES, score, variance, reach)


def _zero(grid: Floats, score: Floats, variance: Floats, reach: float) -> Estimate:
    """Return the zero of a falling score with allowed values, ∞ beyond."""
    falling = np.flatnonzero((score[:-1] > 0) & (score[1:] <= 0))
    if not len(falling):
        return Estimate(math.nan, -math.inf, math.inf)
    # Noise can make several zeros: take the one where the score falls most steeply.
    place = falling[np.argmax(score[falling] - score[falling + 1])]
    drop, step = score[place] - score[place + 1], grid[1] - grid[0]
    value = float(grid[place] + step * score[place] / drop)
    inside = np.flatnonzero(np.square(score) <= reach**2 * variance)
    low = grid[inside[0]] - step if len(inside) else value
    high = grid[inside[-1]] + step if len(inside) else value
    ends = (
        -math.inf if low < grid[0] else min(float(low), value),
        math.inf if high > grid[-1] else max(float(high), value),
    )
    return Estimate(value, *ends)
