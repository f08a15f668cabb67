"""Survival in a table: a time and an event become intervals whose edges are public."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.data_source import OwnColumn
from hdpfl_flower.data.array_targets import targets_of_times
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.table_records import EARLY, read_table
from tests.hdpfl_tools.tables.test_site_data import write_csv

TEXT = """
[label]
column = "months"
edges = [6, 12, 24]
[label.event]
column = "died"
occurred = ["1", "dead"]
censored = ["0", "alive"]
[[columns]]
name = "a"
type = "number"
bounds = [0, 10]
"""
HEADER = "a,months,died"


def read(tmp_path: Path, *rows: str, own: OwnTable | None = None, text: str = TEXT):  # type: ignore[no-untyped-def]
    path = write_csv(tmp_path / "t.csv", list(rows), HEADER)
    return read_table(path, "csv", Schema.parse(text), own or OwnTable())


def test_a_row_becomes_its_last_interval_and_the_event(tmp_path: Path) -> None:
    """On an edge: the interval that it ends. Censored: the second half of an interval counts."""
    rows = ["1,0,1", "1,6,1", "1,6.1,dead", "1,24,1", "1,24.1,1", "1,999,0",
            "1,3,0", "1,8.9,alive", "1,9,0", "1,18,0"]  # fmt: skip
    found = read(tmp_path, *rows)
    expected = [(0, 1), (0, 1), (1, 1), (2, 1), (2, 0), (2, 0), (0, 0), (0, 0), (1, 0), (2, 0)]
    assert [divmod(int(one), 2) for one in found.records.targets] == expected
    assert found.summary.clipped["months"] == 2


def test_what_is_no_time_or_event_is_left_out_alone(tmp_path: Path) -> None:
    bad = ["1,-1,1", "1,?,1", "1,soon,0", "1,4,", "1,4,2", "1,nan,1", "1,1e999,1"]
    good = ["2,5,1", "3,5,0"]
    found = read(tmp_path, *good, *bad, "1,2.9,0")
    assert found.records.targets.tolist() == [1, 0]
    assert found.summary.left_out["no known label"] == len(bad)
    assert found.summary.left_out[EARLY] == 1
    assert found.summary.unknown_labels == 5
    alone = read(tmp_path, *good)
    np.testing.assert_array_equal(found.records.features, alone.records.features)


def test_hazards_of_exponential_times_are_found_under_censoring() -> None:
    """Half of a first interval of a follow-up that ends at random: biased neither way.

    Counting every censored record as a survivor of its interval, or none, misses by more than the
    bound of five standard errors.
    """
    random, n, rate = np.random.default_rng(3), 200_000, 0.05
    times, ends = random.exponential(1 / rate, n), random.uniform(0, 48, n)
    events, seen = times <= ends, np.minimum(times, ends)
    edges = (6.0, 12.0, 24.0)
    targets, known = targets_of_times(seen, events, edges)
    last, event = targets[known] // 2, targets[known] % 2 == 1
    for at, (low, high) in enumerate(zip((0.0, *edges[:-1]), edges, strict=True)):
        risk = last >= at
        found = float((event & (last == at)).sum() / risk.sum())
        hazard = 1 - np.exp(-rate * (high - low))
        error = np.sqrt(hazard * (1 - hazard) / risk.sum())
        # The rule is exact for hazards that are small within an interval: 2 % of it is its own.
        assert abs(found - hazard) < 5 * error + 0.02 * hazard
    whole = np.searchsorted(np.array(edges), seen).clip(max=2)
    naive = float((events & (seen <= 6)).sum() / (whole >= 0).sum())
    assert abs(naive - (1 - np.exp(-6 * rate))) > 0.05 * naive


def test_a_site_writes_times_and_events_its_own_way(tmp_path: Path) -> None:
    """Days in place of months, ja and nein in place of 1 and 0."""
    own = OwnTable(columns={
        "months": OwnColumn(name="Tage", factor=1 / 30.4375),
        "died": OwnColumn(name="verstorben", values={"ja": "1", "nein": "0"}),
    })  # fmt: skip
    path = write_csv(tmp_path / "t.csv", ["1,200,ja", "1,365,nein"], "a,Tage,verstorben")
    found = read_table(path, "csv", Schema.parse(TEXT), own)
    assert found.records.targets.tolist() == [3, 2]
    with pytest.raises(DataError, match=r"'data.columns.died' has 'factor'"):
        OwnTable(columns={"died": OwnColumn(factor=2)}).check(Schema.parse(TEXT))
    with pytest.raises(DataError, match=r"'data.columns.a.name' is the column of the label"):
        OwnTable(columns={"a": OwnColumn(name="died")}).check(Schema.parse(TEXT))
