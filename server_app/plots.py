"""Pictures of runs from their journals, by matplotlib (extra ``plots``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import DataError, InstallationError
from hdpfl_flower.models.site_summary import METRICS
from hdpfl_flower.monitoring.journal import Event, finished_rounds
from hdpfl_flower.system.extras import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

log = logging.getLogger("hdpfl.server")
Curves = Mapping[str, npt.NDArray[np.float64]]
"""Strategy → accuracy, shape ``(seeds, rounds)``."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: distinct for colour-blind readers too."""


def why_no_picture() -> str:
    """Return the message that matplotlib is missing, else ''."""
    try:
        check_pictures()
    except InstallationError as error:
        return str(error)
    return ""


def draw_run(rounds: Sequence[Event], folder: Path) -> None:
    """Draw ``run.png`` of a run; skipped without rounds or matplotlib."""
    if why := why_no_picture():
        log.warning("no picture of the run: %s", why)
    elif rounds:
        plot_run(rounds, folder / "run.png")


def check_pictures() -> None:
    """Check that pictures can be drawn, before the work.

    Raises:
        InstallationError: matplotlib is not installed, or does not start: a notebook's kernel names
            a backend that another environment may not have.
    """
    with extra("plots", "a picture"):
        try:
            import matplotlib.figure  # noqa: F401
        except ValueError:
            raise InstallationError(
                "matplotlib does not have the backend that MPLBACKEND names; run: unset MPLBACKEND"
            ) from None


def plot_run(events: Sequence[Event], path: Path) -> None:
    """Draw one run by round: a panel per unit, and each site's weight.

    All panels have the same rounds below each other.

    Raises:
        DataError: the journal has no finished round, or is damaged.
    """
    rounds = finished_rounds(events)
    if not rounds:
        raise DataError("the run has no finished round, so there is nothing to draw")
    units = _metrics_by_unit(rounds)
    sites = list(dict.fromkeys(site for event in rounds for site in event["asked"]))
    heights = [2.6] * len(units) + [min(6.0, 1.6 + 0.2 * len(sites))]
    with extra("plots", "a picture"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    figure = Figure(figsize=(9.3, sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    numbers = [event["round"] for event in rounds]
    for panel, (unit, names) in zip(axes, units.items(), strict=False):
        for (color, style), name in zip(line_styles(), names, strict=False):
            values = [event["metrics"].get(name, np.nan) for event in rounds]
            mark = "o" if np.isfinite(values).sum() == 1 else None  # one point makes no line
            panel.plot(numbers, values, color=color, linestyle=style, marker=mark, label=name)
        panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
        label_axes(panel, "", unit, f"Test of the models: {unit}")
    image = _draw_weights(axes[-1], rounds, sites)
    figure.colorbar(image, cax=axes[-1].inset_axes((1.015, 0.0, 0.02, 1.0)))
    label_axes(axes[-1], "round", "site", "Weight in the aggregate (white: no update used)")
    axes[-1].spines[["top", "right"]].set_visible(True)
    save_figure(figure, path)


def plot_panels(
    panels: Mapping[str, Curves], path: Path, title: str = "", label: str = "accuracy"
) -> None:
    """Draw a measure by round, one panel per name.

    Args:
        panels: name → strategy → the measure.
        path: where the PNG goes.
        title: of the picture.
        label: the name of the measure.
    """
    figure, axes = new_figure(max(1, len(panels)), title, one_scale=True)
    for panel, (name, curves) in zip(axes, panels.items(), strict=False):
        _draw_curves(panel, curves, name, label)
    save_figure(figure, path)


def plot_demo(
    curves: Curves,
    estimated: npt.NDArray[np.float64],
    true: npt.NDArray[np.float64],
    path: Path,
) -> None:
    """Draw the demo: accuracy by round, estimated and true noise.

    Args:
        curves: the accuracy of each strategy.
        estimated: each site's noise as the server estimates it, a coordinate, shape ``(n,)``.
        true: the noise it really added, shape ``(n,)``.
        path: where the PNG goes.
    """
    figure, (left, right) = new_figure(2)
    _draw_curves(left, curves, "Test accuracy of the global model")
    shown = np.concatenate([estimated, true])
    ends = [float(shown.min()) / 1.5, float(shown.max()) * 1.5]
    right.plot(ends, ends, color="0.6", linewidth=1, label="if sites disclosed their noise")
    from_updates = "a site, estimated only from its updates"
    right.scatter(true, estimated, color=COLORS[1], zorder=3, label=from_updates)
    right.set(xscale="log", yscale="log")
    right.legend(frameon=False, loc="upper left")
    title = "What the server finds by itself"
    label_axes(right, "true noise of a site", "estimated noise", title)
    save_figure(figure, path)


def _metrics_by_unit(rounds: Sequence[Event]) -> dict[str, list[str]]:
    """Return metric names by measured quantity, without variances.

    ``accuracy``, ``loss``, ``mse`` and ``mae`` have a scale each; other metrics are last.
    """
    names = sorted({name for event in rounds for name in event["metrics"]})
    shown = [name for name in names if not name.endswith("-variance")]
    units = {unit: [n for n in shown if unit in n.split("-")] for unit in METRICS}
    if "mse" in shown and units["accuracy"]:
        units = {"R² (accuracy)": units.pop("accuracy"), **units}
    units["other metrics"] = [name for name in shown if not {*name.split("-")} & {*METRICS}]
    return {unit: members for unit, members in units.items() if members}


def _draw_weights(axes: Axes, rounds: Sequence[Event], sites: Sequence[str]) -> AxesImage:
    """Draw a cell for each round and site."""
    numbers = [event["round"] for event in rounds]
    first, last = min(numbers), max(numbers)
    # NaN stays white: no update is not a weight of 0.
    weights = np.full((len(sites), last - first + 1), np.nan)
    row = {site: number for number, site in enumerate(sites)}
    for event in rounds:
        for site, weight in zip(event["accepted"], event["weights"], strict=False):
            weights[row[site], event["round"] - first] = weight
    extent = (first - 0.5, last + 0.5, len(sites) - 0.5, -0.5)
    image = axes.imshow(weights, aspect="auto", interpolation="nearest", vmin=0, extent=extent)
    step = -(-len(sites) // 25)  # more names would stand in one another
    axes.set_yticks(range(0, len(sites), step), sites[::step], fontsize=9)
    return image


def _draw_curves(axes: Axes, curves: Curves, title: str, label: str = "accuracy") -> None:
    from matplotlib.ticker import MaxNLocator

    faint = min(0.18, 0.5 / max(1, len(curves)))  # many bands over one another hide the lines
    for (color, style), (name, accuracy) in zip(line_styles(), curves.items(), strict=False):
        rounds = np.arange(1, accuracy.shape[1] + 1)
        mean, spread = accuracy.mean(0), accuracy.std(0)
        axes.plot(rounds, mean, color=color, linestyle=style, label=f"{name}  {mean[-1]:.3f}")
        ends = mean - spread, mean + spread
        axes.fill_between(rounds, *ends, color=color, alpha=faint, linewidth=0)
    outside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(frameon=False, **(outside if len(curves) > 4 else {}))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    seeds = max((len(accuracy) for accuracy in curves.values()), default=0)
    shown = f"mean ± sd, {seeds} seeds" if seeds > 1 else "one seed"
    label_axes(axes, "round", f"{label} ({shown})", title)


def line_styles() -> Iterator[tuple[str, str]]:
    """Yield colour and dash of each line, the first 28 all different."""
    for lap in count():
        for color, dash in zip(COLORS, (0, 0, 1, 2, 3, 0, 1), strict=True):
            yield color, ("-", "--", "-.", ":")[(dash + lap) % 4]


def new_figure(panels: int, title: str = "", *, one_scale: bool = False) -> tuple[Figure, Any]:
    """Return a figure with panels side by side."""
    with extra("plots", "a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2 * panels, 4.4), layout="constrained")
    if title:
        figure.suptitle(fill(title, 70 * panels), fontsize=12)
    return figure, figure.subplots(1, panels, squeeze=False, sharey=one_scale)[0]


def label_axes(axes: Axes, x: str, y: str, title: str) -> None:
    """Set the labels and the title; remove the frame's upper and right line."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: Path) -> None:
    """Write the PNG, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
