"""Survival curve of the sites' first messages, with its band.

A site's sums over cosines (``hdpfl_flower/data/survival_cells.py``) are y = A·x + N(0, σ²), x the
records of each cell. Under the hazards of events h(θ) and of censoring g(θ), and N records, x has
the mean m(θ), the draw of the records adds A·diag(m)·Aᵀ to the noise, and θ is found by Bayes:

* log hazards are a + b·log t + τ·r(t), with r of a Gaussian process (Matérn 3/2) over the intervals
  and a, b, log τ normal: of a Weibull law where noise hides more, and no such where records show
  it. Public constants scale them to the last edge; N is free.
* The mode is found by least squares; draws come from elliptical slice sampling (Murray, Adams and
  MacKay, AISTATS 2010) around it (Nishihara, Murray and Adams, JMLR 2014), with one seed.

The band is of 95 % of the draws at each time: noise, and the draw of the records (Greenwood's part)
unless a sum of sites hides their number. Raw hazards, events over records at risk, of so noisy
counts are no hazards (arXiv 2509.00615 bounds them one by one).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.optimize import least_squares

from hdpfl_flower.data.survival_cells import Floats, cosines
from hdpfl_flower.measures.bootstrap import Estimate

QUANTILES: Final = (0.25, 0.5, 0.75)
"""Shares of records with an event whose times are shown."""
LEVEL, TIMES, SLOPE = (-0.5, 1.3), (0.2, 0.8), (math.log(0.5), 0.7)
"""Mean and deviation of a (of the log hazard in one follow-up), b and log τ: wide on purpose, for
hazards that rise, fall, turn, or of few events."""
REACH: Final = 0.25
"""Correlation length of r, as a share of the intervals."""
LEAST_RECORDS: Final = 2.0
"""Standard deviations of its noise that the number of records must be away from 0."""
LEAST_NOISE: Final = 1e-4
"""Least noise in a coordinate, of all records, so that a run without noise has a curve too."""
CHAINS, STEPS, BURNT = 100, 30, 10
WIDER: Final = 1.2
"""Factor of the reference's deviations: its tails must not be lighter than those of the target."""
_SMALLEST, _LARGEST = -30.0, 3.0
HIDDEN = "the noise hides how many records there are; ask for a larger share, or more sites"
HELD_BACK = "its operator held it back, or no site sent it"


def curve_of(
    rows: Floats, edges: tuple[float, ...], noise: float, *, is_summed: bool
) -> dict[str, Any]:
    """Return the curve of a group of sites.

    Args:
        rows: their sums over cosines in records, shape ``(sites, 2 · intervals)``; rows of zeros
            were held back.
        edges: ends of the intervals.
        noise: standard deviation of the noise in each coordinate of the rows' sum.
        is_summed: whether sites weighted their records: no counts are known, and the band holds the
            noise alone.

    Returns:
        ``edges``; at each ``survival``, with its band, ``at-risk`` and ``events`` of the interval
        that it ends, null of a sum; ``quantiles``: times, with intervals, null where it is not
        reached; or ``why`` there is none.
    """
    rows = rows[np.any(rows != 0, axis=1)]
    sums, intervals = rows.sum(0), len(edges)
    if not len(rows):
        return {"why": HELD_BACK}
    # The number of records is linear in the sums.
    factors = np.linalg.solve(cosines(intervals).T, np.ones(2 * intervals))
    if not factors @ sums > LEAST_RECORDS * noise * np.linalg.norm(factors):
        return {"why": HIDDEN}
    records = float(factors @ sums)
    model = _Model(np.array(edges), records)
    draws = _draws(model, sums, max(noise, LEAST_NOISE * records), has_draw=not is_summed)
    cells, hazards = model.cells(draws)
    survival = np.exp(-hazards.cumsum(1))
    at_risk = np.cumsum(cells.reshape(len(cells), -1, 2).sum(2)[:, ::-1], 1)[:, ::-1]
    return {
        "edges": list(edges),
        "holds": "noise" if is_summed else "noise and the sampling of the records",
        "at-risk": None if is_summed else at_risk.mean(0).round(2).tolist(),
        "events": None if is_summed else cells[:, 1::2].mean(0).round(2).tolist(),
        "survival": [_estimate(column) for column in survival.T],
        "quantiles": {
            f"{100 * share:g} %": _estimate(_times_of(1 - share, survival, edges))
            for share in QUANTILES
        },
    }


def _estimate(draws: Floats) -> dict[str, float | None]:
    """Return median and interval of 95 % of draws, of which some may be infinite."""
    low, middle, high = np.quantile(draws, (0.025, 0.5, 0.975), method="nearest").round(6).tolist()
    return Estimate(middle, low, high).facts()


def _times_of(level: float, survival: Floats, edges: tuple[float, ...]) -> Floats:
    """Return the time at which each curve falls to ``level``, linear between edges; else ∞."""
    ends = np.array([0.0, *edges])
    curves = np.concatenate([np.ones((len(survival), 1)), survival], 1)
    return np.array(
        [np.interp(-level, -curve, ends) if curve[-1] <= level else math.inf for curve in curves]
    )


class _Model:
    """Cells of the records by θ, which is standard normal before any record.

    θ is (log N, a, b, log τ, r of events, a, b, log τ, r of censoring), each in deviations.
    """

    def __init__(self, edges: Floats, records: float) -> None:
        intervals = len(edges)
        starts = np.concatenate([[0.0], edges[:-1]])
        self._widths = np.log((edges - starts) / edges[-1])
        logs = np.log(edges / 2 + starts / 2)
        self._logs = logs - logs.mean()
        places = (np.arange(intervals) + 0.5) / intervals
        apart = math.sqrt(3) * np.abs(places[:, None] - places) / REACH
        matern = (1 + apart) * np.exp(-apart)
        self._root = np.linalg.cholesky(matern + 1e-6 * np.eye(intervals))
        self._records = math.log(records)
        self.size = 1 + 2 * (3 + intervals)

    def cells(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return mean records of each cell ``(n, 2K)`` and cumulated hazards' steps ``(n, K)``."""
        events, lost = map(self._hazards, np.split(theta[:, 1:], 2, axis=1))
        lost[:, -1] = math.inf  # after the last edge all are censored
        before = np.cumsum(events, 1) - events
        before[:, 1:] += np.cumsum(lost[:, :-1], 1)
        at_risk = np.exp(self._records + theta[:, :1] - before)
        cells = np.empty((len(theta), 2 * events.shape[1]))
        cells[:, 1::2] = at_risk * -np.expm1(-events)
        cells[:, 0::2] = at_risk * np.exp(-events) * -np.expm1(-lost)
        return cells, events

    def _hazards(self, theta: Floats) -> Floats:
        level = LEVEL[0] + LEVEL[1] * theta[:, :1]
        slope = (TIMES[0] + TIMES[1] * theta[:, 1:2]) * self._logs
        rough = np.exp(SLOPE[0] + SLOPE[1] * theta[:, 2:3]) * (theta[:, 3:] @ self._root.T)
        logs = np.clip(level + slope + rough + self._widths, _SMALLEST, _LARGEST)
        return np.asarray(np.exp(logs))


def _draws(model: _Model, sums: Floats, noise: float, *, has_draw: bool) -> Floats:
    """Return draws of θ given the sums, shape ``(n, size)``."""
    matrix, mode = cosines(len(sums) // 2), np.zeros(model.size)
    cells = model.cells(mode[None])[0][0]
    for _ in range(3):  # the variance of the cells follows their mean
        spread = noise**2 * np.eye(len(sums)) + has_draw * (matrix * cells) @ matrix.T
        whiten = np.linalg.inv(np.linalg.cholesky(spread))
        fit = _Whitened(model, whiten @ sums, whiten @ matrix)
        found = least_squares(fit.residuals, mode, fit.slopes, xtol=1e-4, ftol=1e-4, max_nfev=60)
        mode, cells = found.x, model.cells(found.x[None])[0][0]
    root = np.linalg.inv(np.linalg.cholesky(found.jac.T @ found.jac)).T
    return _sampled(fit, mode, WIDER * root)


@dataclass(frozen=True)
class _Whitened:
    """Sums and matrix in units of their deviations."""

    model: _Model
    sums: Floats
    matrix: Floats

    def residuals(self, theta: Floats) -> Floats:
        """Return those of the sums, and of θ from its own mean."""
        return np.concatenate(
            [self.model.cells(theta[None])[0][0] @ self.matrix.T - self.sums, theta]
        )

    def slopes(self, theta: Floats) -> Floats:
        """Return the derivatives of the residuals in θ."""
        steps = 1e-5 * np.eye(len(theta))
        apart = self.model.cells(theta + steps)[0] - self.model.cells(theta - steps)[0]
        return np.concatenate([(apart @ self.matrix.T).T / 2e-5, np.eye(len(theta))])

    def log_density(self, theta: Floats) -> Floats:
        """Return that of each θ, but for a constant."""
        gaps = self.model.cells(theta)[0] @ self.matrix.T - self.sums
        return np.asarray(-(np.square(gaps).sum(1) + np.square(theta).sum(1)) / 2)


def _sampled(fit: _Whitened, mode: Floats, root: Floats) -> Floats:
    """Return draws by elliptical slices around N(mode, root·rootᵀ), all chains at a time."""
    random = np.random.default_rng(0)

    def density(points: Floats) -> Floats:
        values = fit.log_density(mode + points @ root.T) + np.square(points).sum(1) / 2
        return np.asarray(values)

    points = random.normal(size=(CHAINS, len(mode)))
    now, kept = density(points), []
    for step in range(STEPS):
        other, least = random.normal(size=points.shape), now - random.exponential(size=CHAINS)
        angles = random.uniform(0, 2 * math.pi, CHAINS)
        low, high = angles - 2 * math.pi, angles.copy()
        start, open_ = points.copy(), np.arange(CHAINS)
        while len(open_):  # an angle of 0 is on the slice, and the bracket shrinks to it
            turned = angles[open_, None]
            moved = start[open_] * np.cos(turned) + other[open_] * np.sin(turned)
            values = density(moved)
            points[open_], now[open_] = moved, values
            open_ = open_[values < least[open_]]
            below = angles[open_] < 0
            low[open_] = np.where(below, angles[open_], low[open_])
            high[open_] = np.where(below, high[open_], angles[open_])
            angles[open_] = random.uniform(low[open_], high[open_])
        if step >= BURNT:
            kept.append(mode + points @ root.T)
    return np.concatenate(kept)
