"""Survival curve of a first message: rows, and its picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from server_app.plots import COLORS, label_axes, new_figure, save_figure, why_no_picture

PICTURE = "survival.png"
COUNTS = ("at-risk", "events")
QUANTILE = "time at which"
"""Beginning of the name of a quantile."""
CURVE_HEAD = ("time", "at risk", "events", "survival", "95 % band")


def curve_rows(curve: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any] | None, bool]]:
    """Yield measure, estimate and whether it is a share, a row a number; None: it is hidden.

    Args:
        curve: of ``server_app.releases.survival_curve.curve_of``.
    """
    if "why" in curve:
        yield "curve", None, False
        return
    for name in COUNTS:
        for (low, high), value in zip(_intervals(curve), curve[name] or (), strict=False):
            estimate = {"value": value, "low": None, "high": None}
            yield f"{name.replace('-', ' ')} from {low:g} to {high:g}", estimate, False
    for end, estimate in zip(curve["edges"], curve["survival"], strict=True):
        yield f"survival at {end:g}", estimate, True
    for share, estimate in curve["quantiles"].items():
        yield f"{QUANTILE} {share} had the event", estimate, False


def curve_table(curve: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a row an interval, as ``CURVE_HEAD`` names its cells; none of a hidden curve."""
    if "why" in curve:
        return []
    rows = []
    for number, ((low, high), point) in enumerate(
        zip(_intervals(curve), curve["survival"], strict=True)
    ):
        counts = (f"{curve[name][number]:.0f}" if curve[name] else "–" for name in COUNTS)
        ends = (f"{point[end]:.3f}" for end in ("value", "low", "high"))
        value, *band = ends
        rows.append((f"{low:g} to {high:g}", *counts, value, " to ".join(band)))
    return rows


def about(curve: Mapping[str, Any]) -> str:
    """Return what the band of a curve holds, or why there is none."""
    if "why" in curve:
        return f"there is no curve: {curve['why']}"
    return f"survival at the end of each interval; the band holds {curve['holds']}"


def _intervals(curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    return list(pairwise([0.0, *curve["edges"]]))


def draw_curves(curves: Mapping[str, Mapping[str, Any]], path: Path) -> bool:
    """Draw the curves of groups with their bands; return False without one or matplotlib.

    Args:
        curves: by group, as of :func:`curve_rows`.
        path: where the PNG goes.
    """
    shown = {name: curve for name, curve in curves.items() if "why" not in curve}
    if not shown or why_no_picture():
        return False
    figure, (axes,) = new_figure(1)
    for color, (name, curve) in zip(COLORS, shown.items(), strict=False):
        times = np.array([0.0, *curve["edges"]])
        start = {"value": 1.0, "low": 1.0, "high": 1.0}
        points = [start, *curve["survival"]]
        value, low, high = (
            np.array([point[end] for point in points]) for end in ("value", "low", "high")
        )
        axes.step(times, value, where="post", color=color, label=name)
        axes.fill_between(times, low, high, step="post", color=color, alpha=0.18, linewidth=0)
    axes.set(ylim=(0, 1.02), xlim=(0, None))
    axes.legend(frameon=False)
    label_axes(axes, "time", "survival", "Share without an event, with bands of 95 %")
    save_figure(figure, path)
    return True
