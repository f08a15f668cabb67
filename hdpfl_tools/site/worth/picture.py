"""Picture of a comparison by matplotlib (extra ``plots``)."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hdpfl_flower.measures.bootstrap import Estimate
from hdpfl_flower.system.extras import extra
from hdpfl_flower.system.printable import printable
from hdpfl_tools.site.worth.comparison import REFERENCES, Judged, ModelComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {"none": "#000000", "private": "#0072B2", "kept": "#D55E00"}
"""Of Okabe and Ito's palette: distinct for colour-blind readers too."""


def check_pictures() -> None:
    """Raise ``InstallationError`` where matplotlib is missing, before the work to be drawn."""
    with extra("plots", "a picture"):
        import matplotlib.figure  # noqa: F401


def draw(comparison: ModelComparison, title: str) -> bytes:
    """Return a PNG: the deciding measure of each model, and its gains over the two references."""
    with extra("plots", "a picture"):
        from matplotlib.figure import Figure

    models, measure = comparison.models, comparison.measure
    figure = Figure(figsize=(12.5, 1.8 + 0.45 * len(models)), layout="constrained")
    figure.suptitle(printable(title), fontsize=12, parse_math=False)
    panels = figure.subplots(1, 3, sharey=True)
    percent = f"{100 * comparison.confidence:g} %"
    titles = [f"{measure}\n({percent} interval of each)"]
    titles += [
        f"gain over the {name} in {measure}\n({percent} interval, for all gains at once)"
        for name in REFERENCES
    ]
    columns: list[list[Estimate | None]] = [[model.measures[measure] for model in models]]
    columns += [[model.gains.get(name) for model in models] for name in REFERENCES]
    for panel, text, estimates in zip(panels, titles, columns, strict=True):
        _draw(panel, estimates, [_COLORS[model.kind] for model in models])
        panel.set_title(text, fontsize=10)
    for panel in panels[1:]:
        panel.axvline(0, color="0.6", linewidth=1)
    panels[0].set_yticks(range(len(models)), [_label(model) for model in models])
    panels[0].invert_yaxis()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    return picture.getvalue()


def _draw(panel: Axes, estimates: Sequence[Estimate | None], colors: Sequence[str]) -> None:
    for place, (estimate, color) in enumerate(zip(estimates, colors, strict=True)):
        if estimate is None or not math.isfinite(estimate.value):
            continue
        panel.plot(estimate.value, place, "o", color=color)
        if math.isfinite(estimate.low) and math.isfinite(estimate.high):
            panel.plot([estimate.low, estimate.high], [place, place], color=color)
    panel.spines[["top", "right"]].set_visible(False)


def _label(model: Judged) -> str:
    return model.name if model.kind == "none" else f"{model.name} ({model.kind})"
