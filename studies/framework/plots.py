"""Pictures of tables, by matplotlib (extra ``plots``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from server_app.plots import label_axes, line_styles, new_figure, save_figure


def plot_columns(
    panels: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]],
    path: Path,
    label: str,
    title: str,
) -> None:
    """Draw lines over named columns, a panel for each name.

    Args:
        panels: name → line → column → (value, standard deviation; NaN: none is drawn).
        path: where the PNG goes.
        label: of the vertical axis.
        title: of the picture.
    """
    figure, axes = new_figure(max(1, len(panels)), title, one_scale=True)
    for panel_axes, (panel, lines) in zip(axes, panels.items(), strict=False):
        columns = list(dict.fromkeys(column for line in lines.values() for column in line))
        for (color, style), (name, line) in zip(line_styles(), lines.items(), strict=False):
            places = [columns.index(column) for column in line]
            values = np.array(list(line.values()), dtype=np.float64)
            has_spread = bool(np.isfinite(values[:, 1]).any())
            spread = np.nan_to_num(values[:, 1]) if has_spread else None
            panel_axes.errorbar(
                places,
                values[:, 0],
                spread,
                color=color,
                linestyle=style,
                marker="o",
                label=name,
                capsize=2,
                markersize=4,
            )
        long = max(map(len, columns), default=0) * len(columns) > 60
        panel_axes.set_xticks(
            range(len(columns)),
            columns,
            rotation=35 if long else 0,
            ha="right" if long else "center",
        )
        label_axes(panel_axes, "", label, panel)
    axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save_figure(figure, path)


def plot_gaps(
    panels: Mapping[str, Mapping[str, npt.NDArray[np.float64]]], path: Path, title: str
) -> None:
    """Draw optimality gaps by round, log axes, one panel per name.

    Args:
        panels: name → line → gap after each round, shape ``(rounds,)``; those not finite or not
            above 0 are left out.
        path: where the PNG goes.
        title: of the picture.
    """
    figure, axes = new_figure(max(1, len(panels)), title)
    for panel_axes, (name, lines) in zip(axes, panels.items(), strict=False):
        for (color, style), (label, gaps) in zip(line_styles(), lines.items(), strict=False):
            shown = np.where(np.isfinite(gaps) & (gaps > 0), gaps, np.nan)
            rounds = np.arange(1, len(gaps) + 1)
            panel_axes.plot(rounds, shown, color=color, linestyle=style, label=label)
        panel_axes.set(xscale="log", yscale="log")
        label_axes(panel_axes, "round", "f(x) − f(x*)", name)
    axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    save_figure(figure, path)
