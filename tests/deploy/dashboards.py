"""Panels of the committed dashboards, as Grafana reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docker" / "grafana" / "dashboards"
GPU = "GPU, where NVIDIA's dcgm-exporter is scraped"


@dataclass(frozen=True)
class Panel:
    """One panel: its title, its meaning, its queries, the folded row that it lies in."""

    title: str
    says: str
    queries: tuple[str, ...]
    row: str


def panels_of(place: str) -> tuple[Panel, ...]:
    """Return the panels of ``coordinator.json`` or ``site.json``, rows unfolded."""

    def read(panels: list[dict[str, Any]], row: str) -> Iterator[Panel]:
        for panel in panels:
            if panel["type"] == "row":
                yield from read(panel["panels"], panel["title"])
            else:
                queries = tuple(target["expr"] for target in panel["targets"])
                yield Panel(panel["title"], panel["description"], queries, row)

    return tuple(read(json.loads((FOLDER / f"{place}.json").read_text())["panels"], ""))
