"""Picture of a comparison by matplotlib (extra ``plots``)."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from client_app.worth.comparison import REFERENCES, ModelComparison
from hdpfl_flower.measures.bootstrap import Estimate
from hdpfl_flower.system.extras import extra
from hdpfl_flower.system.printable import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"none": "#000000", "private": "#0072B2", "kept": "#D55E00"}
"""Of Okabe and Ito's palette: distinct for colour-blind readers too."""


def check_pictures() -> None:
    """Raise ``InstallationError`` where matplotlib is missing, before the work to be drawn."""
    with extra("plots", "a picture"):
        import matplotlib.figure  # noqa: F401


def draw(found: ModelComparison, title: str) -> bytes:
    """Return a PNG: the deciding measure of each model, and its gains over the two references.

    Args:
        found: what is drawn.
        title: of the picture.
    """
    with extra("plots", "a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(12.5, 1.8 + 0.45 * len(found.models)), layout="constrained")
    figure.suptitle(printable(title), fontsize=12, parse_math=False)
    axes = figure.subplots(1, 3, sharey=True)
    percent = f"{100 * found.confidence:g} %"
    panels: list[tuple[str, Sequence[Estimate | None]]] = [
        (f"{found.measure}\n({percent} interval of each)",
         [one.measures[found.measure] for one in found.models]),
        *((f"gain over the {reference} in {found.measure}\n({percent} of all at once)",
           [one.gains.get(reference) for one in found.models]) for reference in REFERENCES),
    ]  # fmt: skip
    for each, (label, values) in zip(axes, panels, strict=True):
        _panel(each, label, values, [_COLORS[one.kind] for one in found.models])
    for each in axes[1:]:
        each.axvline(0, color="0.6", linewidth=1)
    axes[0].set_yticks(
        range(len(found.models)), [_label(one.name, one.kind) for one in found.models]
    )
    axes[0].invert_yaxis()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    return picture.getvalue()


def _panel(
    axes: Axes, label: str, values: Sequence[Estimate | None], colors: Sequence[str]
) -> None:
    for place, (value, color) in enumerate(zip(values, colors, strict=True)):
        if value is None or not math.isfinite(value.value):
            continue
        axes.plot(value.value, place, "o", color=color)
        if math.isfinite(value.low) and math.isfinite(value.high):
            axes.plot([value.low, value.high], [place, place], color=color)
    axes.set_title(label, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def _label(name: str, kind: str) -> str:
    return name if kind == "none" else f"{name} ({kind})"
