"""Draw a dashboard's queries with matplotlib, where there is no Grafana.

    python -m deploy.grafana.draw coordinator|site URL OUT.png [--run REGEX] [--minutes N]

The panels, their titles, places and queries are the dashboards' own, the data are what Prometheus
at ``URL`` answers; only the looks are not Grafana's.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deploy.grafana.panels import COORDINATOR, SITE, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 200
WHOLE = 24
"""Columns of a dashboard."""
SHOWN = 12
"""Lines that a legend names."""
Line = tuple[str, np.ndarray, np.ndarray]
"""Name, seconds since the start, values."""


def main() -> None:
    """Draw one dashboard."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("dashboard", choices=["coordinator", "site"])
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("--run", default=".*", help="regular expression of the runs to show")
    parser.add_argument("--minutes", type=float, default=60.0, help="before now")
    words = parser.parse_args()
    panels = COORDINATOR if words.dashboard == "coordinator" else SITE
    now = time.time()
    draw(words.url, panels, words.run, (now - 60 * words.minutes, now), words.out)


def draw(
    url: str, panels: tuple[Panel, ...], run: str, times: tuple[float, float], out: Path
) -> None:
    """Draw ``panels`` over ``times`` (seconds since 1970) into the PNG ``out``."""
    from matplotlib.figure import Figure

    places = _places(panels)
    rows = max(bottom for _, bottom, _ in places)
    height = 1.3 * rows + 0.8
    figure = Figure(figsize=(18, height))
    grid = figure.add_gridspec(
        rows, WHOLE, left=0.03, right=0.99, bottom=0.4 / height, top=1 - 0.8 / height,
        wspace=0.9, hspace=0.9,
    )  # fmt: skip
    figure.suptitle(
        "The dashboard's queries, drawn with matplotlib", fontsize=10, y=1 - 0.15 / height
    )
    for panel, (top, bottom, left) in zip(panels, places, strict=True):
        one = figure.add_subplot(grid[top:bottom, left : left + panel.width])
        chosen = ".*" if panel.clusters else run  # a run that clusters is another one
        lines = [line for query in panel.queries for line in _lines(url, query, chosen, times)]
        one.set_title(panel.title, fontsize=9, loc="left")
        one.tick_params(labelsize=7)
        one.spines[["top", "right"]].set_visible(False)
        if not lines:
            one.text(0.5, 0.5, "no data", ha="center", transform=one.transAxes)
        elif panel.kind in ("stat", "status"):
            _draw_numbers(one, panel, lines)
        elif panel.kind == "heatmap":
            _draw_heatmap(one, lines)
        else:
            _draw_lines(one, panel, lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=70)


def _places(panels: tuple[Panel, ...]) -> list[tuple[int, int, int]]:
    """Return top, bottom and left of each panel, in rows and columns: as Grafana lets them flow."""
    places, top, left, height = [], 0, 0, 0
    for panel in panels:
        if left + panel.width > WHOLE:
            top, left, height = top + height, 0, 0
        tall = 1 if panel.kind in ("stat", "status") else 2
        height = max(height, tall)
        places.append((top, top + tall, left))
        left += panel.width
    return places


def _lines(url: str, query: Any, run: str, times: tuple[float, float]) -> list[Line]:
    begin, end = times
    words = {"query": query.expr.replace("$run", run), "start": f"{begin:.3f}",
             "end": f"{end:.3f}", "step": f"{max(1.0, (end - begin) / POINTS):.3f}"}  # fmt: skip
    address = f"{url}/api/v1/query_range?{urllib.parse.urlencode(words)}"
    with urllib.request.urlopen(address, timeout=30) as reply:  # noqa: S310 - the user's own URL
        found = json.load(reply)["data"]["result"]
    lines = []
    for series in found:
        labels = series["metric"]
        name = query.legend
        for label in re.findall(r"\{\{(\w+)\}\}", name):
            name = name.replace(f"{{{{{label}}}}}", labels.get(label, ""))
        at, values = np.array(series["values"], dtype=float).T
        lines.append((name, at - begin, values))
    return sorted(lines, key=lambda line: line[0])


def _draw_numbers(axes: Axes, panel: Panel, lines: list[Line]) -> None:
    axes.set_axis_off()
    for place, (name, _, values) in enumerate(lines[:3]):
        last = values[-1]
        text = f"{last:.0%}" if panel.unit == "percentunit" else f"{last:.4g}"
        if panel.kind == "status":
            text = "yes" if last else "no"
        y = 1 - (place + 0.5) / min(len(lines), 3)
        axes.text(0.02, y, text, fontsize=14, va="center", transform=axes.transAxes)
        axes.text(0.98, y, name, fontsize=8, va="center", ha="right", transform=axes.transAxes)


def _draw_heatmap(axes: Axes, lines: list[Line]) -> None:
    times = np.unique(np.concatenate([at for _, at, _ in lines]))
    cells = np.full((len(lines), len(times)), np.nan)
    for row, (_, at, values) in enumerate(lines):
        cells[row, np.searchsorted(times, at)] = values
    edges = np.append(times, times[-1] + 1)
    image = axes.pcolormesh(edges, np.arange(len(lines) + 1), cells, vmin=0, cmap="viridis")
    axes.set_yticks(np.arange(len(lines)) + 0.5, [name for name, _, _ in lines])
    axes.figure.colorbar(image, ax=axes).ax.tick_params(labelsize=7)
    axes.set_xlabel("s", fontsize=7)


def _draw_lines(axes: Axes, panel: Panel, lines: list[Line]) -> None:
    if panel.kind == "stacked":
        times = np.unique(np.concatenate([at for _, at, _ in lines]))
        columns = [np.interp(times, at, values) for _, at, values in lines]
        axes.stackplot(times, columns, labels=[name for name, _, _ in lines])
    else:
        for name, at, values in lines:
            gaps = np.diff(at, prepend=at[0]) > 2.5 * np.median(np.diff(at)) if len(at) > 2 else []
            shown = np.where(gaps, np.nan, values) if len(gaps) else values
            axes.plot(at, shown, drawstyle="steps-post", linewidth=1.1, label=name)
    if panel.log:
        axes.set_yscale("log")
        axes.tick_params(which="both", labelsize=7)
    if len(lines) <= SHOWN:
        axes.legend(fontsize=6, frameon=False, ncols=2)
    axes.set_xlabel("s", fontsize=7)


if __name__ == "__main__":
    main()
