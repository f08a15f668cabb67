"""Every record of every unit, for tests at the site: the sides are those of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.models.task import Records
from hdpfl_tools.tables.site_data import read_site_data, read_unit_records
from tests.hdpfl_tools.tables.test_site_data import TABLE, TEXT, WITH_ID, source, write_csv


def same(one: Records, other: Records) -> bool:
    pairs = ((one.features, other.features), (one.targets, other.targets))
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("holdout", [0.0, 0.4])
def test_training_takes_each_units_first_free_record(tmp_path: Path, holdout: float) -> None:
    rows = [f"{i},{i % 2},p{i % 37}" for i in range(120)] + ["5,1,", "9,PATIENT-123,p1", "7,0,p99"]
    table = write_csv(tmp_path / "t.csv", rows, "a,y,who")
    where = source(table, "csv", holdout, "who")
    data, every = read_site_data(where, TABLE, WITH_ID), read_unit_records(where, TABLE, WITH_ID)
    assert len(every.records) == 121  # neither the one without an id nor the one without a label
    assert same(every.records.take(np.flatnonzero(every.first & ~every.held_out)), data.train)
    if data.test is not None:
        assert same(every.records.take(np.flatnonzero(every.first & every.held_out)), data.test)
    assert every.first.sum() == 38 == len(set(every.units.tolist()))
    for unit in range(38):
        assert len(set(every.held_out[every.units == unit].tolist())) == 1
    assert bool(every.held_out.any()) == bool(holdout)


LAST = [  # by the day, of two rows of one day the later, of rows without a day the last
    "1,0,p,01.03.2024", "2,1,p,02.03.2024", "3,0,p,29.02.2024", "4,1,q,?", "5,0,q,01.01.1970",
    "6,1,r,?", "7,0,r,x", "8,1,s,01.01.2024", "9,0,s,01.01.2024", "10,?,s,02.01.2024",
]  # fmt: skip


def last_by_day(path: Path, rows: list[str]) -> DataSource:
    table = write_csv(path / "t.csv", rows, "a,y,who,seen")
    given = {"format": "csv", "path": str(table), "id": "who", "row": "last by seen"}
    return DataSource.model_validate(
        given | {"columns": {"seen": {"date-formats": ["%d.%m.%Y"], "missing": ["31.12.9999"]}}}
    )


@pytest.mark.parametrize(
    "schema", [WITH_ID, 'missing = ["02.03.2024"]\n' + WITH_ID, WITH_ID.replace("1000", "2000")]
)
def test_training_takes_each_units_last_record_by_date(tmp_path: Path, schema: str) -> None:
    """Whatever the schema says of dates, and whatever stands in rows of other units."""
    most = 2000 if "2000" in schema else 1000

    def used(rows: list[str]) -> list[float]:
        where = last_by_day(tmp_path, rows)
        data, every = read_site_data(where, TABLE, schema), read_unit_records(where, TABLE, schema)
        assert same(every.records.take(np.flatnonzero(every.first & ~every.held_out)), data.train)
        return [round((float(each) + 1) / 2 * most) for each in data.train.features[:, 0]]

    assert used(LAST) == [2, 5, 7, 9]
    for more in ("11,0,t,31.12.2024", "11,0,,31.12.2024", "11,0,t", "11,?,t,?"):
        for at in range(len(LAST) + 1):
            assert [a for a in used([*LAST[:at], more, *LAST[at:]]) if a != 11] == [2, 5, 7, 9]
    assert used([*LAST, "11,0,q,31.12.9999", "12,0,q,02.01.1970"]) == [2, 7, 9, 12]


@pytest.mark.parametrize("holdout", [0.0, 0.4])
def test_units_hold_means_of_last_rows(tmp_path: Path, holdout: float) -> None:
    rows = [f"{i},{i % 2},p{i % 7},{1 + i % 28:02}.03.2024" for i in range(60)]
    where = last_by_day(tmp_path, [*rows, "5,1,,01.03.2024", "9,?,p1,31.03.2024"])
    given = where.model_copy(update={"records_per_unit": 9, "holdout": holdout})
    data, every = read_site_data(given, TABLE, WITH_ID), read_unit_records(given, TABLE, WITH_ID)
    assert data.units.features.shape == (len(data.train), 9, 1)
    assert np.array_equal(data.units.features[:, 0], data.train.features)  # and so of the filling
    assert data.summary.left_out["repeated id"] == 0
    for unit, first in enumerate(np.flatnonzero(every.first & ~every.held_out)):
        own = every.records.take(np.flatnonzero(every.units == every.units[first]))
        weight = data.units.targets[unit, :, 1]
        assert weight[: len(own)].tolist() == pytest.approx([1 / len(own)] * len(own))
        assert not weight[len(own) :].any()
        told = zip(data.units.features[unit, :, 0], data.units.targets[unit, :, 0], strict=True)
        held = zip(own.features[:, 0], own.targets, strict=True)
        assert sorted([*told][: len(own)]) == sorted(held)
    fewer = read_site_data(given.model_copy(update={"records_per_unit": 2}), TABLE, WITH_ID)
    assert fewer.summary.left_out["repeated id"] == 60 - 2 * 7
    assert np.array_equal(fewer.units.features, data.units.features[:, :2])


def test_without_ids_each_record_is_a_unit_and_copies_are_known(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", ["1,0", "1,0", "1,1", "2,0"])
    every = read_unit_records(source(table, "csv", 0.5), TABLE, TEXT)
    assert every.units.tolist() == [0, 1, 2, 3]
    assert every.copies.tolist() == [0, 0, 1, 2]
    assert every.first.all()
