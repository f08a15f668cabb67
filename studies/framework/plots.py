"""Pictures of tables, by matplotlib (extra ``plots``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

import numpy as np
import numpy.typing as npt

from hdpfl_flower.system.extras import extra
from server_app.plots import COLORS, label_axes, line_styles, new_figure, save_figure


def plot_columns(
    panels: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]],
    path: Path,
    label: str,
    title: str,
    *,
    logarithmic: bool = False,
) -> None:
    """Draw lines over named columns, a panel for each name.

    Args:
        panels: name → line → column → (value, standard deviation; NaN: none is drawn).
        path: where the PNG goes.
        label: of the vertical axis.
        title: of the picture.
        logarithmic: whether that axis is.
    """
    figure, axes = new_figure(max(1, len(panels)), title, one_scale=True)
    for one, (panel, lines) in zip(axes, panels.items(), strict=False):
        columns = list(dict.fromkeys(column for line in lines.values() for column in line))
        for (color, style), (name, line) in zip(line_styles(), lines.items(), strict=False):
            places = [columns.index(column) for column in line]
            values = np.array(list(line.values()), dtype=np.float64)
            known = bool(np.isfinite(values[:, 1]).any())
            spread = np.nan_to_num(values[:, 1]) if known else None
            one.errorbar(
                places, values[:, 0], spread, color=color, linestyle=style, marker="o", label=name,
                capsize=2, markersize=4,
            )  # fmt: skip
        long = max(map(len, columns), default=0) * len(columns) > 60
        one.set_xticks(
            range(len(columns)),
            columns,
            rotation=35 if long else 0,
            ha="right" if long else "center",
        )
        if logarithmic:
            one.set_yscale("log")
        label_axes(one, "", label, panel)
    axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_figure(figure, path)


def plot_differences(
    panels: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]],
    path: Path,
    label: str,
    title: str,
) -> None:
    """Draw differences at named places, one panel per name.

    The axis is logarithmic beyond ±1, so that tenths and tens are both seen.

    Args:
        panels: name → mark → place → (value, standard error; NaN: none is drawn).
        path: where the PNG goes.
        label: of the horizontal axis.
        title: of the picture.
    """
    places = list(dict.fromkeys(p for marks in panels.values() for m in marks.values() for p in m))
    with extra("plots", "a picture"):
        from matplotlib.figure import Figure

    size = (3.2 + 4.6 * max(1, len(panels)), 2.4 + 0.3 * len(places))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(fill(title, 70), fontsize=12)
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False, sharex=True, sharey=True)[0]
    for one, (panel, marks) in zip(axes, panels.items(), strict=False):
        for number, ((color, _), (name, points)) in enumerate(
            zip(line_styles(), marks.items(), strict=False)
        ):
            values = np.array(list(points.values()), dtype=np.float64).reshape(-1, 2)
            # Equal values of two marks stand below each other, within the row of their place.
            rows = np.array([places.index(place) for place in points], dtype=np.float64)
            rows += 0.6 * ((number + 0.5) / len(marks) - 0.5)
            one.errorbar(
                values[:, 0], rows, xerr=np.nan_to_num(values[:, 1]), color=color, linestyle="",
                marker="osD^vPX"[number % 7], markersize=4, label=name,
            )  # fmt: skip
        one.axvline(0, color="0.6", linewidth=1)
        one.set_xscale("symlog", linthresh=1)
        one.xaxis.set_major_formatter("{x:g}")
        one.set_yticks(range(len(places)), places, fontsize=8)
        one.set_ylim(max(1, len(places)) - 0.5, -0.5)
        label_axes(one, label, "", panel)
    if places:
        axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        said = "no difference: the row\nto compare with was not run"
        axes[0].text(0.5, 0.5, said, ha="center", va="center", transform=axes[0].transAxes)
    save_figure(figure, path)


def plot_gaps(
    panels: Mapping[str, Mapping[str, npt.NDArray[np.float64]]], path: Path, title: str
) -> None:
    """Draw optimality gaps by round, log axes, one panel per name.

    Args:
        panels: name → line → gap after each round, shape ``(rounds,)``; what is not finite or not
            above 0 is left out.
        path: where the PNG goes.
        title: of the picture.
    """
    figure, axes = new_figure(max(1, len(panels)), title)
    for one, (name, lines) in zip(axes, panels.items(), strict=False):
        for (color, style), (label, gaps) in zip(line_styles(), lines.items(), strict=False):
            shown = np.where(np.isfinite(gaps) & (gaps > 0), gaps, np.nan)
            rounds = np.arange(1, len(gaps) + 1)
            one.plot(rounds, shown, color=color, linestyle=style, label=label)
        one.set(xscale="log", yscale="log")
        label_axes(one, "round", "f(x) − f(x*)", name)
    axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    save_figure(figure, path)


def plot_positions(
    panels: Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]],
    path: Path,
    title: str,
) -> None:
    """Draw points in the plane by group, one panel per name.

    Args:
        panels: name → (positions, shape ``(n, 1)`` or ``(n, 2)``; groups, shape ``(n,)``).
        path: where the PNG goes.
        title: of the picture.
    """
    figure, axes = new_figure(max(1, len(panels)), title)
    for one, (name, (positions, groups)) in zip(axes, panels.items(), strict=False):
        flat = np.hstack([positions, np.zeros((len(positions), 1))])[:, :2]
        for group in np.unique(groups):
            own = flat[groups == group]
            color, mark = COLORS[group % len(COLORS)], "osD^vPX"[group % 7]
            one.scatter(own[:, 0], own[:, 1], color=color, marker=mark, label=f"group {group}")
        label_axes(one, "first direction", "second direction", name)
    axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_figure(figure, path)
