"""Constants, ids and leaks of the label among the features, only for the site's own screen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.columns import Mask
from hdpfl_flower.data.schema import NumberColumn, Schema
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.screen.losses import Labels
from hdpfl_tools.tables.table_reader import RawTable

TELLING = 0.98
"""AUROC of one feature alone from which it is taken for the label."""
LEAST = 10
"""Least records of a label, and of all others, for a warning."""
CROWD = 50
"""Least records of a column for a look at how they fill its bounds."""
CROWDED = 0.1
"""Share of the bounds below which nine of ten records are crowded."""
IDS = 20
"""Whole numbers, all different, above which they are taken for ids."""


def about_features(
    raw: RawTable, schema: Schema, site_table: OwnTable, labels: Labels, used: Mask
) -> Iterator[str]:
    """Yield lines about missing cells, constants, ids and leaks.

    Args:
        raw: the table.
        schema: of the run.
        site_table: how the site writes it.
        labels: of all rows.
        used: rows that training uses, shape ``(n,)``.
    """
    for column in schema.columns:
        marks = (*schema.missing, *column.missing)
        cells, missing = site_table.read(raw, column.name, column.aliases, marks)
        if isinstance(column, NumberColumn):
            values = cells.numbers
        else:
            texts, places = site_table.choices(column.name, column.categories)
            index = cells.lookup(texts)
            values = np.where(index >= 0, places[index], np.nan)
        held = np.isfinite(values) & ~missing & used
        yield from _about_missing(column.name, missing, used, site_table)
        different, name = np.unique(values[held]), f"warning: column '{column.name}'"
        if len(different) == 1 and held.sum() >= LEAST:
            yield f"{name} is constant: a model learns nothing from it, but it takes ε"
        elif _are_ids(different, int(held.sum())) and isinstance(column, NumberColumn):
            yield f"{name}: every number is different: is the column an id? An id is not a feature"
        elif isinstance(column, NumberColumn) and not column.typical:
            yield from _about_crowd(column, values[held])
        told = telling(values, held, labels, is_number=isinstance(column, NumberColumn))
        if told > TELLING:
            yield (
                f"{name} is enough to tell the label of these records (AUROC {told:.3f}): is it "
                "the outcome, or is it known only after the outcome? Then a model of it is of no "
                "use: take the column out of the schema"
            )


def _about_missing(name: str, missing: Mask, used: Mask, site_table: OwnTable) -> Iterator[str]:
    """Yield a line about the missing cells of a column."""
    gone, rows = int((missing & used).sum()), int(used.sum())
    if site_table.own(name).absent:
        yield (
            f"column '{name}': this site does not have it ('absent'), so it is filled in all "
            f"{rows} records of training, and its feature is constant"
        )
    elif gone and gone == rows:
        line = f"warning: column '{name}' is missing in every record that training uses: its"
        others = int((~missing & ~used).sum())
        rest = f"; the {others} cells that hold something belong to other rows" if others else ""
        yield f"{line} feature is constant, but it takes ε{rest}"
    elif gone:
        yield f"column '{name}': {gone} of {rows} cells are missing and filled"


def _about_crowd(column: NumberColumn, values: npt.NDArray[np.float64]) -> Iterator[str]:
    """Yield a warning where nine of ten records lie in a tenth of the bounds or less."""
    if len(values) < CROWD:
        return
    low, high = np.quantile(np.clip(values, *column.bounds), (0.05, 0.95))
    # Halves before the differences, which may overflow.
    share = (high / 2 - low / 2) / (column.bounds[1] / 2 - column.bounds[0] / 2)
    if share < CROWDED:
        yield (
            f"warning: column '{column.name}': nine of ten records lie in {100 * share:.1f} % of "
            "'bounds': so the noise hides most of the column, and the model loses accuracy; ask "
            "the coordinator for narrower 'bounds', or for a 'typical' mean and deviation that "
            "are known in public"
        )


def _are_ids(different: npt.NDArray[np.float64], held: int) -> bool:
    return held > IDS and len(different) == held and bool((different % 1 == 0).all())


def telling(
    values: npt.NDArray[np.float64], held: Mask, labels: Labels, *, is_number: bool
) -> float:
    """Return a feature's AUROC for the label, or that of its absence; 0 for few records.

    The mean over the labels, each against all others. A category's score is the share of the
    label among the other records of that category.

    Args:
        values: numbers or indices of categories, shape ``(n,)``.
        held: which of them are known, shape ``(n,)``.
        labels: of the records.
        is_number: whether values have an order.
    """
    from sklearn.metrics import roc_auc_score

    is_labelled, best = labels.rows >= 0, 0.0
    for rows, scores in ((is_labelled & held, values), (is_labelled, held.astype(np.float64))):
        areas = []
        for label in range(len(labels.names)):
            is_label = labels.rows[rows] == label
            if min(is_label.sum(), (~is_label).sum()) >= LEAST:
                given = scores[rows] if is_number else _share(scores[rows], is_label)
                area = float(roc_auc_score(is_label, given))
                areas.append(max(area, 1 - area) if is_number else area)
        best = max(best, float(np.mean(areas)) if areas else 0.0)
    return best


def _share(values: npt.NDArray[np.float64], is_label: Mask) -> npt.NDArray[np.float64]:
    """Return each category's share of the label without the record, (n,)."""
    _, categories, counts = np.unique(values, return_inverse=True, return_counts=True)
    others = counts[categories] - 1
    hits = np.bincount(categories, weights=is_label)[categories] - is_label
    return np.where(others > 0, hits / np.maximum(others, 1), 0.5)
