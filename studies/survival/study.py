"""Survival curves of one message, beside exact ones: error on `lung`, coverage on made-up times.

Ours, of what arXiv 2509.00615 asks for. A curve is compared on its own public grid; the exact one
of all times is beside it. `lung` (survival::lung of R) is split into three hospitals at random.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.record_moments import EMPTY, Layout
from hdpfl_flower.errors import DataError
from server_app.releases.moments import table_of
from studies.framework.study import Findings, Options, Study, Table, select_or_all
from studies.survival.made_up import (
    LAWS,
    Floats,
    curve_layout,
    drawn,
    kaplan_meier,
    noise_of,
    sum_of,
    survival_of,
)

QUARTER = 91.3125
GRIDS = {"8 quarters": (QUARTER, 8), "12 quarters": (QUARTER, 12), "24 months": (QUARTER / 3, 24)}
EPSILONS = (0.5, 1.0, 2.0, 4.0)
FEDERATIONS = 1000
NOISES = 100


@dataclass(frozen=True, kw_only=True)
class CurveErrors(Study):
    """Errors on ``lung`` by grid, coverage by law."""

    takes = ("--seeds", "--columns")

    def conduct(self, options: Options, folder: Path) -> Findings:
        """Draw all messages and read their curves, without any training."""
        del folder
        shown = select_or_all(("lung", "coverage"), options.columns, "--columns")
        tables, numbers = [], dict[str, Any]()
        if "lung" in shown:
            numbers["lung"] = _lung(options.data_dir, options.seeds or NOISES)
            tables.append(_lung_table(numbers["lung"]))
        if "coverage" in shown:
            numbers["coverage"] = _coverage(options.seeds or FEDERATIONS)
            tables.append(_coverage_table(numbers["coverage"]))
        return Findings(tuple(tables), {"cells": numbers}, self.notes)


def _noisy(exact: Floats, z: Floats, draws: np.random.Generator) -> Floats:
    return exact + z[:, None] * draws.normal(size=exact.shape)


def _read(rows: Floats, layout: Layout, *, is_summed: bool = False) -> dict[str, Any]:
    return dict(table_of(rows, layout, is_summed=is_summed)["curve"])


def _values(curve: dict[str, Any], end: str = "value") -> Floats:
    return np.array([point[end] for point in curve["survival"]])


def _lung(data_dir: str, seeds: int) -> dict[str, Any]:
    times, events = _lung_times(data_dir)
    owners = np.random.default_rng(0).permutation(np.arange(len(times)) % 3)
    z, found = noise_of(1.0), dict[str, Any]()
    for grid, (width, number) in GRIDS.items():
        layout = curve_layout(tuple(width * k for k in range(1, number + 1)))
        sites = [sum_of(times[owners == i], events[owners == i], layout) for i in range(3)]
        sums, cells = np.array([site[0] for site in sites]), sum(site[1] for site in sites)
        exact, errors = kaplan_meier(np.asarray(cells)), dict[str, list[list[float]]]()
        for seed in range(seeds):
            draws = np.random.default_rng([seed, 1])
            own = _read(_noisy(sums, np.full(3, z), draws), layout)
            # In units of the noise of one site; two of three are assumed to be honest.
            total = (sums.sum(0) / z)[None]
            shared = _noisy(total, np.array([(3 / 2) ** 0.5]), draws)
            for name, curve in (("own", own), ("shared", _read(shared, layout, is_summed=True))):
                gap = np.abs(_values(curve) - exact) if "survival" in curve else np.ones(1)
                errors.setdefault(name, []).append([float(gap.max()), float(gap.mean())])
        on_grid = np.abs(exact - _exact_at(layout.edges, times, events)).max()
        found[grid] = {"errors": errors, "of-the-grid": float(on_grid)}
    return found


def _lung_table(found: dict[str, Any]) -> Table:
    head = (
        "grid",
        "noise",
        "largest error: median",
        "largest error: 90th percentile",
        "mean error: median",
        "error of the grid itself",
    )
    rows = [
        (
            grid,
            noise,
            *(f"{x:.3f}" for x in (np.median(gaps[:, 0]), np.quantile(gaps[:, 0], 0.9))),
            f"{np.median(gaps[:, 1]):.3f}",
            f"{facts['of-the-grid']:.3f}",
        )
        for grid, facts in found.items()
        for noise, gaps in ((name, np.array(part)) for name, part in facts["errors"].items())
    ]
    return Table(
        "Data set lung in three hospitals with ε 1 each: error of the survival curve",
        head,
        tuple(rows),
    )


def _lung_times(data_dir: str) -> tuple[Floats, npt.NDArray[np.bool_]]:
    path = Path(data_dir) / "lung.csv"
    if not path.is_file():
        raise DataError(
            f"the column lung needs {path}: in R call write.csv(survival::lung, 'lung.csv'), "
            "and give its folder as --data-dir; or leave the column out with --columns coverage"
        )
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    status = np.array([float(row["status"]) for row in rows])
    return np.array([float(row["time"]) for row in rows]), status == status.max()


def _exact_at(edges: tuple[float, ...], times: Floats, events: npt.NDArray[np.bool_]) -> Floats:
    """Return the Kaplan-Meier estimate of the times themselves at ``edges``."""
    steps = np.unique(times[events])
    factors = [1 - (events & (times == t)).sum() / (times >= t).sum() for t in steps]
    levels = np.concatenate([[1.0], np.cumprod(factors)])
    return np.asarray(levels[np.searchsorted(steps, edges, side="right")])


def _coverage(federations: int) -> dict[str, Any]:
    """Return by law how often bands hold the true curve, and errors to the exact one."""
    z = {epsilon: noise_of(epsilon) for epsilon in EPSILONS}
    layout, laws = curve_layout(np.linspace(0, 1, 13)[1:].tolist()), list(LAWS)
    found: dict[str, Any] = {law: {"covered": [], "errors": [], "hidden": 0} for law in laws}
    for seed in range(federations):
        law, draws = laws[seed % len(laws)], np.random.default_rng([seed, 2])
        sizes = draws.integers(80, 400, 3)
        sites = [sum_of(*drawn(law, size, draws), layout) for size in sizes.tolist()]
        sums = np.array([site[0] for site in sites])
        noise = np.array([z[epsilon] for epsilon in draws.choice(EPSILONS, 3).tolist()])
        curve, truth = _read(_noisy(sums, noise, draws), layout), survival_of(law, layout.edges)
        if "survival" not in curve:
            found[law]["hidden"] += 1
            continue
        held = (_values(curve, "low") <= truth) & (truth <= _values(curve, "high"))
        exact = kaplan_meier(np.asarray(sum(site[1] for site in sites)))
        found[law]["covered"].append(held.tolist())
        found[law]["errors"].append(float(np.abs(_values(curve) - exact).max()))
    return found


def _coverage_table(found: dict[str, Any]) -> Table:
    shown = {law: facts for law, facts in found.items() if facts["covered"]}
    whole = {
        "covered": [row for facts in shown.values() for row in facts["covered"]],
        "errors": [error for facts in shown.values() for error in facts["errors"]],
        "hidden": sum(facts["hidden"] for facts in found.values()),
    }
    rows = [
        (
            law,
            f"{100 * np.mean(facts['covered']):.1f} %",
            f"{100 * np.min(np.mean(facts['covered'], axis=0)):.0f} %",
            f"{np.median(facts['errors']):.3f}",
            f"{np.quantile(facts['errors'], 0.9):.3f}",
            f"{facts['hidden']}",
        )
        for law, facts in {**shown, "all": whole}.items()
    ]
    head = (
        "law",
        "covered",
        "covered at the worst time",
        "largest error: median",
        "largest error: 90th percentile",
        "hidden curves",
    )
    title = f"Bands of 95 % in {len(whole['covered'])} made-up federations"
    return Table(title, head, tuple(rows))


SURVIVAL = CurveErrors(
    name="survival",
    title="Errors of survival curves from one message",
    source="ours (no paper)",
    minutes=12,
    notes=(
        "The made-up federations have three sites of 80 to 399 records, ε of .5, 1, 2 or 4 at each "
        f"site, and 12 intervals. The noise is estimated from {EMPTY} empty coordinates.",
        "The error of the grid is the exact curve on the grid minus the curve of the exact times.",
    ),
)
