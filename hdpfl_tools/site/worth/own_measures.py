"""Measures of a model on a site's records and subgroups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.config.data_source import TABLES, DataSource
from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_flower.models.task import Task
from hdpfl_tools.measures.clinical import How, Measured, Outputs, Targets, measure
from hdpfl_tools.tables.site_data import UnitRecords, read_unit_records
from hdpfl_tools.tables.subgroups import read_subgroups

Predict = Callable[[npt.NDArray[np.float32]], Outputs]
HELD_OUT, EVERY, OTHER_TABLE = "held-out", "all", "table"
"""Choice of records: held out, all of ``[data]``, or another table."""
SMALLEST_GROUP = 20
"""Units (persons, or rows) below which a subgroup is not shown."""


@dataclass(frozen=True, repr=False)
class OwnMeasures:
    """The measures of one model at a site; private.

    Attributes:
        which: records, one of the three words above.
        whole: on all of them.
        groups: column → group → its measures.
        small: column → number of groups with too few units to be shown.
    """

    which: str
    whole: Measured
    groups: Mapping[str, Mapping[str, Measured]]
    small: Mapping[str, int]

    def facts(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {
            "which": self.which,
            **self.whole.facts(),
            "subgroups": {
                column: {group: measured.facts() for group, measured in groups.items()}
                for column, groups in self.groups.items()
            },
            "subgroup-minimum": SMALLEST_GROUP,
            "subgroups-too-small": dict(self.small),
        }


def source_of(site: Profile, table: Path | None, *, every: bool) -> tuple[DataSource, str]:
    """Return the place and choice of the records.

    Args:
        site: the profile.
        table: a labelled table in the form of the site's own, in place of ``[data]``.
        every: all records, those of training too.

    Raises:
        ProfileError: there is no ``[data]``, or it holds no record out and ``every`` is not set.
    """
    if site.data is None:
        raise ProfileError("profile: [data] is missing; set 'data.format' and 'data.path'")
    if table is not None:
        if site.data.format not in TABLES:
            raise ProfileError("'--table' needs a profile whose 'data.format' is that of a table")
        return site.data.elsewhere(table), OTHER_TABLE
    if every:
        return site.data, EVERY
    if site.data.holdout == 0:
        raise ProfileError(
            "profile: 'data.holdout' is 0, so the run's models were trained on every record; set "
            "it before the next run, name later records with --table FILE, or add --all to "
            "measure on the records of training (then a model looks better than it is)"
        )
    return site.data, HELD_OUT


def measure_here(
    source: DataSource, which: str, task: Task, schema_text: str, predict: Predict, how: How
) -> OwnMeasures:
    """Return the measures of the model behind ``predict``; intervals are over units.

    All labelled records of a unit are in it. A regression of a table is measured in the label's own
    units.

    Args:
        source: of the records.
        which: of them.
        task: of the model.
        schema_text: of its run.
        predict: features, shape ``(n, *input_shape)`` → outputs, shape ``(n, task.outputs)``.
        how: level and so on.

    Raises:
        DataError: the records cannot be read, none is left, or an output is not finite.
    """
    every = read_unit_records(source, task, schema_text)
    rows = np.flatnonzero(every.held_out) if which == HELD_OUT else np.arange(len(every.units))
    if not len(rows):
        held_out = "'data.holdout' keeps none of these records out of training; raise it"
        why = held_out if which == HELD_OUT else "no record of the table has a known label"
        raise DataError(f"no record is left on which to measure: {why}")
    records, units = every.records.take(rows), every.units[rows]
    outputs, targets = predict(records.features), records.targets
    label = Schema.load(schema_text).label if schema_text else None
    if label is not None and label.bounds is not None:
        outputs = label.unscale(outputs).astype(np.float32)
        targets = label.unscale(np.asarray(targets, np.float32)).astype(np.float32)

    def measured(chosen: npt.NDArray[np.int64]) -> Measured:
        of_these: Targets = targets[chosen]
        return measure(task, outputs[chosen], of_these, units[chosen], how)

    groups: dict[str, dict[str, Measured]] = {}
    small: Counter[str] = Counter()
    for column, of_record in _subgroups(source, every, schema_text).items():
        named = np.array(of_record, dtype=object)[rows]
        groups[column] = {}
        for group in sorted(set(named), key=_in_order):
            chosen = np.flatnonzero(named == group)
            if len(np.unique(units[chosen])) < SMALLEST_GROUP:
                small[column] += 1
                continue
            groups[column][group] = measured(chosen)
    return OwnMeasures(which, measured(np.arange(len(rows))), groups, small)


def _subgroups(source: DataSource, every: UnitRecords, schema_text: str) -> dict[str, list[str]]:
    if not source.subgroups or every.positions is None:
        return {}
    return read_subgroups(source, Schema.load(schema_text), every.positions)


def _in_order(group: str) -> tuple[int, str]:
    """Return the key of the order of groups: thirds of a number from the lowest, else by name."""
    return 2 - group.startswith("≤") - ("≤" in group), group
