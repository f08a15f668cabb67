"""Build of the dashboards: ``python -m deploy.grafana.dashboards``.

Tests compare its output.

Built with Grafana's own SDK for Grafana 10.1, the oldest it knows; newer ones also read it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, heatmap, stat, timeseries
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode

from deploy.grafana.panels import COORDINATOR, RUN, SITE, Panel
from hdpfl_flower.monitoring import series as metrics

FOLDER = Path(__file__).parents[2] / "docker" / "grafana" / "dashboards"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${source}")
COLUMNS = 24
RED, GREEN = "red", "green"

AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel


def main() -> None:
    """Write both dashboards."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in dashboards().items():
        (folder / name).write_text(text)


def dashboards() -> dict[str, str]:
    """Return the JSON of each dashboard by its file name."""
    found = {
        "coordinator.json": _dashboard("hdpfl: federation", "hdpfl-coordinator", COORDINATOR,
                                       metrics.RUN.name, several=False),
        "site.json": _dashboard("hdpfl: this site", "hdpfl-site", SITE, metrics.RUN_EPSILON.name,
                                several=True),
    }  # fmt: skip
    encoder = JSONEncoder(sort_keys=True, indent=1)
    return {name: encoder.encode(built.build()) + "\n" for name, built in found.items()}


def _dashboard(
    title: str, uid: str, panels: Iterable[Panel], runs_of: str, *, several: bool
) -> dashboard.Dashboard:
    built = (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["hdpfl"])
        .editable()
        .refresh("15s")
        .time("now-1h", "now")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus")
        )
        .with_variable(
            dashboard.QueryVariable(RUN)
            .label("Run")
            .datasource(SOURCE)
            .query(f"label_values({runs_of}, {RUN})")
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_DESC)
            .multi(several)
            .include_all(several)
        )
    )
    panels = list(panels)
    shown = [panel for panel in panels if not panel.row]
    top = 0
    for panel, at in _places(shown):
        built.with_panel(_panel(panel).grid_pos(at))
        top = max(top, at.y + at.h)
    for heading in dict.fromkeys(panel.row for panel in panels if panel.row):
        row = dashboard.Row(heading).collapsed(True).grid_pos(models.GridPos(h=1, w=24, y=top))
        for panel, at in _places([panel for panel in panels if panel.row == heading], top + 1):
            row.with_panel(_panel(panel).grid_pos(at))
        built.with_row(row)
        top += 1
    return built


def _places(panels: Iterable[Panel], top: int = 0) -> Iterator[tuple[Panel, models.GridPos]]:
    """Yield a place per panel: from left to right, a new line where 24 columns are full."""
    left = height = 0
    for panel in panels:
        if left + panel.width > COLUMNS:
            left, top, height = 0, top + height, 0
        own = 4 if panel.kind in ("stat", "status") else 8
        yield panel, models.GridPos(h=own, w=panel.width, x=left, y=top)
        left, height = left + panel.width, max(height, own)


def _panel(panel: Panel) -> AnyPanel:
    made = {"heatmap": _heatmap, "stat": _stat, "status": _status}.get(panel.kind, _lines)(panel)
    made.title(panel.title).description(panel.says).datasource(SOURCE)
    made.unit(panel.unit)
    for number, query in enumerate(panel.queries):
        made.with_target(
            Dataquery()
            .ref_id(chr(ord("A") + number))
            .expr(query.expr)
            .legend_format(query.legend)
            .datasource(SOURCE)
        )
    return made


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .legend(common.VizLegendOptions()
                .show_legend(True)
                .display_mode(options.LegendDisplayMode.LIST)
                .placement(options.LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI))
        .line_interpolation(options.LineInterpolation.STEP_AFTER)
    )  # fmt: skip
    if panel.log:
        made.scale_distribution(
            common.ScaleDistributionConfig().type(options.ScaleDistribution.LOG).log(10)
        )
    if panel.kind == "stacked":
        made.fill_opacity(60).stacking(common.StackingConfig().mode(options.StackingMode.NORMAL))
    return made


def _stat(panel: Panel) -> stat.Panel:
    del panel
    return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


def _status(panel: Panel) -> stat.Panel:
    words = {
        value: models.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, text, color) in enumerate((("1", "yes", GREEN), ("0", "no", RED)))
    }
    return _stat(panel).mappings([models.ValueMap(options=words)])


def _heatmap(panel: Panel) -> heatmap.Panel:
    """Return a heatmap with a row per series.

    Grafana takes the lines of a query for the buckets of a heatmap.
    """
    return (
        heatmap.Panel()
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Viridis")
               .steps(64).min(0))
        .cell_values(heatmap.CellValues().unit(panel.unit))
    )  # fmt: skip


if __name__ == "__main__":
    main()
