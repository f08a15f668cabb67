"""Table 1 of a federation: columns over all sites and at each, from their first messages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hdpfl_flower.errors import DataError
from hdpfl_flower.releases.moments import Moments
from hdpfl_tools.coordinator.reports.page import Block, picture, render, table
from hdpfl_tools.coordinator.reports.survival import (
    CURVE_HEAD,
    QUANTILE,
    about,
    curve_rows,
    curve_table,
)
from server_app.run.resume import run_folder

ALL, CLASS = "all sites", "class "
CURVE = "survival"
HEAD = ("column", "measure", "value", "95 % interval")
_ABOUT = (
    "Each site sent one noisy message, within its ε. The intervals cover this noise. Intervals "
    "of means and deviations also cover the sampling of the records. Values are clipped to the "
    "schema's bounds. Counts are not rounded; where there are few records, a count may be "
    "negative."
)
_HELD_BACK = "held back by the site, or hidden by the noise"


class Line(NamedTuple):
    """A number of Table 1.

    Attributes:
        group: ``all sites``, a class of all sites, or a site.
        column: its name, or ``records`` or ``label``.
        measure: what is measured.
        estimate: ``value``, ``low``, ``high``; None: held back, or hidden by the noise.
        is_share: whether it is a share of 1.
    """

    group: str
    column: str
    measure: str
    estimate: Mapping[str, Any] | None
    is_share: bool = False

    @property
    def is_of_all(self) -> bool:
        """Whether it is of all sites, or of a class of theirs."""
        return self.group == ALL or self.group.startswith(CLASS)

    @property
    def of_curve_table(self) -> bool:
        """Whether a table of the curve shows it."""
        return self.column == CURVE and not self.measure.startswith(QUANTILE)

    @property
    def cells(self) -> tuple[str, str]:
        """Value and interval, for people."""
        if self.estimate is None or self.estimate["value"] is None:
            return "–", _HELD_BACK
        value, low, high = (_text(self.estimate[key], self.is_share) for key in _ENDS)
        return value, "" if (low, high) == ("?", "?") else f"{low} to {high}"


_ENDS = ("value", "low", "high")


def lines_of(facts: Mapping[str, Any]) -> list[Line]:
    """Return the numbers of a run's first message, those of all sites and classes first.

    Args:
        facts: of the journal's event, with ``groups``.

    Raises:
        DataError: the message was not for a table, or no site sent one.
    """
    if why := facts.get("why"):
        raise DataError(f"there is no table: {why}")
    try:
        groups, answered = facts["groups"], facts["answered"]
        names = {"all": ALL, **{str(i): str(site) for i, site in enumerate(answered)}}
        return [
            line for key, group in groups.items() for line in _lines(names.get(key, key), group)
        ]
    except (LookupError, TypeError, AttributeError):
        raise DataError(
            "the run has no table of columns; ask for one with hdpfl statistics RUN.toml, or "
            "in a deployed run with first.moments.content=table"
        ) from None


def curves_of(facts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the survival curve of each group, all sites first; raises as :func:`lines_of`."""
    lines_of(facts)
    names = {"all": ALL, **{str(i): str(site) for i, site in enumerate(facts["answered"])}}
    groups = facts["groups"].items()
    return {names[key]: group["curve"] for key, group in groups if "curve" in group}


def _lines(name: str, group: Mapping[str, Any]) -> Iterator[Line]:
    if "curve" in group:
        for measure, estimate, is_share in curve_rows(group["curve"]):
            yield Line(name, CURVE, measure, estimate, is_share)
    if "columns" in group or "curve" not in group:
        yield from _of_columns(name, group)


def _of_columns(name: str, group: Mapping[str, Any]) -> Iterator[Line]:
    if group["records"] is not None:
        yield Line(name, "records", "count", group["records"])
    for number, cell in enumerate(group["labels"]):
        yield from _cell(name, "label", f"class {number}", cell)
    for column in group["columns"]:
        yield Line(name, column["name"], "mean", column["mean"])
        yield Line(name, column["name"], "deviation", column["deviation"])
        yield from _missing(name, column["name"], column, group)
    for column_name, category in group["categories"].items():
        for value, cell in category["shares"].items():
            yield from _cell(name, column_name, value, cell)
        yield from _missing(name, column_name, category, group)
    for column_name, bins in group["bins"].items():
        for (low, high), cell in zip(pairwise(bins["edges"]), bins["counts"], strict=True):
            yield from _cell(name, column_name, f"{low:g} to {high:g}", cell)
        for quarter, value in zip(("25 %", "50 %", "75 %"), bins["quartiles"], strict=False):
            estimate = {"value": value, "low": None, "high": None}
            yield Line(name, column_name, f"quantile of {quarter}", estimate)


def _missing(
    name: str, column: str, facts: Mapping[str, Any], group: Mapping[str, Any]
) -> Iterator[Line]:
    if "missing" in facts:
        yield Line(name, column, "missing", facts["missing"], is_share=group["records"] is None)


def _cell(name: str, column: str, value: str, cell: Mapping[str, Any]) -> Iterator[Line]:
    yield Line(
        name, column, value, cell["count"] if cell["count"] else cell["share"], not cell["count"]
    )
    if cell["count"]:
        yield Line(name, column, f"share of {value}", cell["share"], is_share=True)


def _text(number: float | None, is_share: bool) -> str:
    if number is None or not math.isfinite(number):
        return "?"
    return f"{100 * number:.1f} %" if is_share else f"{number:.4g}"


def csv_rows(lines: list[Line]) -> list[list[object]]:
    """Return a head and a row a number, in the columns' units and without rounding."""
    head: list[object] = ["group", "column", "measure", *_ENDS]
    values = [[(line.estimate or {}).get(end) for end in _ENDS] for line in lines]
    return [
        head,
        *(
            [line.group, line.column, line.measure, *row]
            for line, row in zip(lines, values, strict=True)
        ),
    ]


def page_of(run_id: str, facts: Mapping[str, Any], drawn: Path) -> str:
    """Return the table as an HTML page, a section a group, with the picture ``drawn`` if any."""
    curves = curves_of(facts)
    sections: dict[str, list[Block]] = {
        name: [table(curve_table(curve), CURVE_HEAD, about(curve))]
        for name, curve in curves.items()
    }
    rows: dict[str, list[tuple[str, ...]]] = {}
    for line in lines_of(facts):
        if not line.of_curve_table:
            rows.setdefault(line.group, []).append((line.column, line.measure, *line.cells))
    for name, part in rows.items():
        sections.setdefault(name, []).append(table(part, HEAD))
    without = "; ".join(f"{site}: {why}" for site, why in facts["without"].items()) or "none"
    return render(
        f"Columns of run {run_id}",
        [_ABOUT, f"{len(facts['answered'])} sites answered; these did not: {without}"],
        {
            "survival": [picture(drawn, "Survival curves with bands of 95 %")],
            **sections,
        },
    )


def counts_of(folder: str) -> tuple[int, str, list[str]]:
    """Return sites, their records as ``hdpfl advise`` takes them, and lines on the labels.

    Args:
        folder: of the run of a first message with a table, or its id.

    Raises:
        DataError: the run had none, or a sum of sites hides the count of each.
    """
    lines = lines_of(facts_in(run_folder(folder)))
    counts = [
        line.estimate["value"]
        for line in lines
        if (line.column, line.measure) == ("records", "count") and not line.is_of_all
        if line.estimate is not None and line.estimate["value"] is not None
    ]
    if not counts:
        raise DataError(
            "this first message states no count of records of a site; give --sites and --records"
        )
    shares = [
        line for line in lines if (line.group, line.column) == (ALL, "label") and line.is_share
    ]
    known = [line for line in shares if line.estimate and line.estimate["value"] is not None]
    said = []
    if known:
        best = max(known, key=lambda line: line.estimate["value"] if line.estimate else 0)
        value, interval = best.cells
        said = [f"# a constant answer is right for {value} ({interval}) of the records", ""]
    return len(counts), ",".join(f"{max(1, round(count))}" for count in counts), said


def facts_in(folder: Path) -> dict[str, Any]:
    """Return the facts of the first message in a run's folder; raises ``DataError``."""
    try:
        return first_facts(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        raise DataError(f"{folder} has no result.json of a finished run") from None


def first_facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the first message in a run's ``result.json``; raises ``DataError``."""
    facts = result.get(Moments.event)
    if not isinstance(facts, dict):
        raise DataError("the run had no first message; see first.moments in the run config")
    return facts
