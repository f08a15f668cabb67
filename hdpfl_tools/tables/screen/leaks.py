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
IDS = 20
"""Whole numbers, all different, above which they are taken for ids."""


def about_features(
    raw: RawTable, schema: Schema, site_table: OwnTable, labels: Labels
) -> Iterator[str]:
    """Yield warnings about constants, ids and leaks."""
    for column in schema.columns:
        marks = (*schema.missing, *column.missing)
        cells, missing = site_table.read(raw, column.name, column.aliases, marks)
        if isinstance(column, NumberColumn):
            values = cells.numbers
        else:
            texts, places = site_table.choices(column.name, column.categories)
            index = cells.lookup(texts)
            values = np.where(index >= 0, places[index], np.nan)
        held = np.isfinite(values) & ~missing
        different, name = np.unique(values[held]), f"warning: column '{column.name}'"
        if len(different) == 1 and held.sum() >= LEAST:
            yield f"{name} is constant: it teaches nothing, and ε is spent on it all the same"
        elif _are_ids(different, int(held.sum())) and isinstance(column, NumberColumn):
            yield f"{name}: every number is another: an id is no feature; is it one?"
        told = telling(values, held, labels, is_number=isinstance(column, NumberColumn))
        if told > TELLING:
            yield (
                f"{name} alone tells the label of these records (AUROC {told:.3f}): is it the "
                "outcome, or known only after it? A model of it is of no use; take it out of the "
                "schema"
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
