"""Made-up survival times of nine laws, and the noisy messages of sites that have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.array_targets import targets_of_times
from hdpfl_flower.data.record_moments import Layout, layout_of, record_sum
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.releases.moments import ALONE

Floats = npt.NDArray[np.float64]
Times = Callable[[Floats], Floats]
DELTA = 1e-5
_GRID = np.linspace(0, 1.5, 3001)


def _of_hazard(hazard: Floats) -> Times:
    steps = (hazard[1:] + hazard[:-1]) / 2 * np.diff(_GRID)
    cumulated = np.concatenate([[0.0], np.cumsum(steps)])
    return lambda unit: np.interp(unit, cumulated, _GRID, right=9.0)


_BATHTUB = 3 * np.exp(-_GRID / 0.05) + 0.5 + 6 * np.maximum(_GRID - 0.6, 0)
_STEPS = np.select([_GRID < 0.2, _GRID < 0.4, _GRID < 0.7], [0.3, 3.5, 0.5], 2.0)
LAWS: dict[str, tuple[Times, tuple[float, float]]] = {
    "constant hazard": (lambda u: 0.45 * u, (0.3, 1.2)),
    "Weibull, shape .6": (lambda u: 0.4 * u ** (1 / 0.6), (0.2, 1.3)),
    "Weibull, shape 2.5": (lambda u: 0.6 * u**0.4, (0.5, 1.2)),
    "log-logistic": (lambda u: 0.35 * np.expm1(u) ** (1 / 1.8), (0.3, 1.3)),
    "bathtub": (_of_hazard(_BATHTUB), (0.4, 1.4)),
    "hazard in steps": (_of_hazard(_STEPS), (0.4, 1.4)),
    "plateau at .43": (lambda u: np.where(u > 0.85, 9.0, 0.2 * u ** (1 / 1.3)), (0.7, 1.5)),
    "heavy censoring": (lambda u: 1.5 * u, (0.05, 1.0)),
    "few events": (lambda u: 8 * u, (0.6, 1.3)),
}
"""Times as a function of unit exponential draws; ends of the even law of censoring. The last edge
is 1."""


def survival_of(law: str, edges: Sequence[float]) -> Floats:
    """Return the law's survival at ``edges``."""
    times, _ = LAWS[law]
    unit = np.linspace(0, 20, 200_001)
    return np.asarray(np.exp(-np.interp(np.asarray(edges), times(unit), unit)))


def drawn(
    law: str, records: int, draws: np.random.Generator
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return times and whether they are events, of ``records`` draws."""
    times, ends = LAWS[law]
    event, lost = times(draws.exponential(size=records)), draws.uniform(*ends, records)
    return np.minimum(event, lost), event <= lost


def curve_layout(edges: Sequence[float]) -> Layout:
    """Return the layout of a message of a curve alone, over public ``edges``."""
    layout = layout_of("", Task.survival((1,), len(edges)), curve=True)
    return replace(layout, edges=tuple(edges))


def sum_of(times: Floats, events: npt.NDArray[np.bool_], layout: Layout) -> tuple[Floats, Floats]:
    """Return a site's exact sum, and its cells."""
    targets, known = targets_of_times(times, events, layout.edges)
    targets = targets[known]
    records = Records(np.zeros((len(targets), 1), np.float32), targets)
    cells = np.bincount(targets, minlength=2 * len(layout.edges)).astype(np.float64)
    return record_sum(layout, records), cells


def noise_of(epsilon: float) -> float:
    """Return z of a run of its first message alone."""
    return calibrate([Steps(1.0, 1)], ALONE * epsilon, DELTA)


def kaplan_meier(cells: Floats) -> Floats:
    """Return the exact curve of cells, as the message orders them."""
    events = cells[1::2]
    at_risk = np.cumsum(cells.reshape(-1, 2).sum(1)[::-1])[::-1]
    return np.cumprod(1 - events / np.maximum(at_risk, 1))
