"""A cell is read by its own type and the profile: no other cell of its column counts."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hdpfl_flower.config.data_source import DataSource, OwnColumn
from hdpfl_flower.data.array_targets import floats_of
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_flower.ledger.checked_table import read_facts
from hdpfl_tools.tables.frozen_table import delete_table, import_table, table_path
from hdpfl_tools.tables.site_data import stored_site_data

SCHEMA = """
id = "pid"
missing = ["", "-9"]
[label]
column = "y"
classes = [["0"], ["1"]]
[[columns]]
name = "age"
type = "number"
bounds = [0, 120]
fill = 60
[[columns]]
name = "smoker"
type = "number"
bounds = [0, 1]
fill = 0.5
[[columns]]
name = "value"
type = "number"
bounds = [0, 1]
"""
HEADER = ("pid", "y", "age", "smoker", "seen", "value")
FORMS = ["%d.%m.%Y"]
OWN = {
    "columns": {
        "age": {"to": "age", "reference": "2024-12-31", "date-formats": FORMS},
        "seen": {"date-formats": FORMS},
    }
}
Cells = tuple[object, ...]
Units = Counter[tuple[object, ...]]


def imported(path: Path, ids: bool = True, **keys: Any) -> Units:
    """Return the records of an imported table with their side, and with their id where it has one.

    With an id the last row by ``seen`` counts.
    """
    given = {"path": str(path), "holdout": 0.5, **OWN, **keys}
    text = SCHEMA if ids else SCHEMA.replace('id = "pid"\n', "")
    given |= {"id": "pid", "row": "last by seen"} if ids else {}
    source = DataSource.model_validate(given)
    ledger = path.with_suffix(".sqlite")
    delete_table(ledger)
    facts = import_table(source, ledger, text)
    frozen = source.frozen(lambda: table_path(ledger, facts.table))
    data = stored_site_data(frozen, Schema.load(text).task, text)
    sides = ((data.train, data.ids), (data.test, data.test_ids))
    return Counter(
        (side, unit, features.tobytes(), target)
        for side, (records, units) in enumerate(sides)
        if records is not None
        for unit, features, target in zip(
            units or [None] * len(records.features), records.features, records.targets.tolist(),
            strict=True,
        )
    )  # fmt: skip


def excel(path: Path, rows: list[Cells]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    for row in (HEADER, *rows):
        book.active.append(row)
    book.save(path)
    return path


PLAIN: list[Cells] = [
    ("a", 0, dt.date(1960, 1, 2), True, dt.date(2020, 1, 2), 0.1),
    ("b", 1, dt.date(1980, 5, 5), False, dt.date(2020, 3, 1), 0.2),
    ("b", 0, dt.date(1981, 5, 5), True, dt.datetime(2020, 2, 1, 23, 30), 0.3),
    ("c", False, dt.date(2000, 7, 7), True, dt.date(2020, 1, 2), 0.4),
]
ODD = (
    "15.03.1970", "1970-03-15", dt.date(1970, 3, 15), dt.datetime(1970, 3, 15, 12), dt.time(3, 4),
    True, False, "true", "TRUE", "unknown", "yes", 1, 0.5, -9, 2**53, 1e300, 7, "7.0", "7", None,
    "", " ", "2\u202f090", "x" * 99,
)  # fmt: skip


def test_typed_dates_and_booleans_of_excel_need_no_format_beside_texts(tmp_path: Path) -> None:
    whole = imported(excel(tmp_path / "t.xlsx", PLAIN))
    odd = ("z", True, "15.03.1970", "unknown", "01.02.2020", 0.5)
    both = imported(excel(tmp_path / "t.xlsx", [*PLAIN, odd]))
    assert whole < both and both.total() == whole.total() + 1 == 4
    read = {unit: np.frombuffer(row, np.float32).tolist() for _, unit, row, _ in both}
    written = [("a", 64, 1, 0.1), ("b", 44, 0, 0.2), ("c", 24, 1, 0.4), ("z", 54, None, 0.5)]
    numbers = [(unit, 0, age, smoker, None, value) for unit, age, smoker, value in written]
    of_numbers = imported(excel(tmp_path / "n.xlsx", numbers), columns={})
    assert read == {unit: np.frombuffer(row, np.float32).tolist() for _, unit, row, _ in of_numbers}
    assert {unit: label for _, unit, _, label in both} == {b"a": 0, b"b": 1, b"c": 0, b"z": 1}


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_cell_of_excel_changes_how_another_is_read(
    tmp_path: Path, ids: bool, count: int
) -> None:
    draws = random.Random(5)

    def row(number: int) -> Cells:
        cells = list(draws.choice(PLAIN))
        cells[0], cells[5] = draws.choice([f"p{number % 5}", number % 5]), number / 97
        for place in range(5):
            if draws.random() < 0.2:
                cells[place] = draws.choice(ODD)
        return tuple(cells)

    for _ in range(count):
        rows = [row(number) for number in range(draws.randrange(3, 9))]
        place = draws.randrange(len(rows))
        less = rows[:place] + rows[place + 1 :]
        whole, rest = (imported(excel(tmp_path / "t.xlsx", each), ids) for each in (rows, less))
        changed = [*(whole - rest), *(rest - whole)]
        # Of the one unit the next row counts, or no row.
        assert len(changed) <= 1 + ids and len({unit for _, unit, _, _ in changed}) <= 1


@pytest.mark.parametrize("text", ["unknown", "3"])
def test_a_text_makes_booleans_of_an_array_no_others(text: str) -> None:
    plain = floats_of(np.array([True, False, True]))
    assert floats_of(np.array([True, False, True, text], dtype="U8"))[:3].tolist() == plain.tolist()


def parquet(path: Path, **columns: Any) -> Path:
    """Write a table of three records of ids 1, 2 and 3."""
    base = {
        "pid": [1, 2, 3],
        "y": [True, False, True],
        "age": pa.array([dt.date(1960, 1, 2), dt.date(1980, 5, 5), None]),
        "smoker": pa.array([True, False, None]),
        "seen": pa.array([dt.date(2020, 1, 2)] * 3),
        "value": [0.1, 0.2, 0.3],
    }
    pq.write_table(pa.table({**base, **columns}), path)
    return path


def bad_texts(*cells: bytes | None) -> Any:
    """Return lists of one text each, of any bytes."""
    texts = pa.array(cells, pa.binary())
    _, offsets, content = texts.buffers()
    values = pa.StringArray.from_buffers(len(cells), offsets, content)
    return pa.ListArray.from_arrays(pa.array([*range(len(cells) + 1)], pa.int32()), values)


@pytest.mark.parametrize("ids", [True, False])
def test_bytes_that_are_no_text_make_their_cell_missing(tmp_path: Path, ids: bool) -> None:
    path = tmp_path / "t.parquet"
    fine = imported(parquet(path, note=bad_texts(b"x", b"y", b"z")), ids)
    try:
        damaged = imported(parquet(path, note=bad_texts(b"x", b"\xff", b"z")), ids)
    except UnicodeDecodeError:
        pytest.fail("one cell stops the import of all records")
    if ids:
        assert damaged == fine and fine.total() == 3
    else:  # the holdout is drawn by all cells of a row
        assert (fine - damaged).total() <= 1
    (_, empty, _), = [
        column for column in read_facts(path.with_suffix(".sqlite")).columns if column[0] == "note"
    ]  # fmt: skip
    assert empty == 1


LONG = [2**53, 2**53 + 1, 2**53 + 2]


def as_floats(ids: list[int | None]) -> Any:
    """Return ids as pandas writes them beside a row without one."""
    return pa.array([None if each is None else float(each) for each in ids], pa.float64())


def test_long_ids_in_a_column_of_floats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    assert imported(parquet(path, pid=LONG)).total() == 3
    assert imported(parquet(path, pid=list(map(str, LONG)))).total() == 3
    facts = read_facts(path.with_suffix(".sqlite"))
    with pytest.raises(DataError, match=r"ids in column 'pid' are floats.*as text or as int"):
        parquet(path, pid=as_floats([*LONG[:2], None]))
        source = DataSource.model_validate({"path": str(path), "id": "pid", **OWN})
        import_table(source, path.with_suffix(".sqlite"), SCHEMA)
    assert read_facts(path.with_suffix(".sqlite")) == facts
    with pytest.raises(DataError, match="are floats"):
        imported(parquet(path, pid=pa.array([2.0**24, 1, 2], pa.float32())))


def test_other_floats_are_no_long_ids(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    written: list[Callable[[], Path]] = [
        lambda: parquet(path, pid=as_floats([1, 2, None])),
        lambda: parquet(path, value=as_floats([2**60, 1, 2])),
    ]
    assert [imported(write()).total() for write in written] == [2, 3]
    names = {key[1] for key in imported(parquet(path, pid=as_floats([1, 2**53 - 1, None])))}
    assert names == {b"1", b"%d" % (2**53 - 1)}


def test_parts_of_other_types_read_as_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "t.parquet"
    folder.mkdir()
    parquet(folder / "0.parquet")
    one = imported(folder)
    born = pa.array(["02.01.1960", "1980-05-05", ""])
    truths = {name: pa.array(["TRUE", "false", "true"]) for name in ("y", "smoker")}
    parquet(folder / "1.parquet", pid=[4, 5, 6], age=born, **truths)
    both = imported(folder)
    assert one < both and both.total() == 6
    rows = {unit: row for _, unit, row, _ in both}
    assert (rows[b"1"], rows[b"2"]) == (rows[b"4"], rows[b"5"])


def test_no_format_reads_typed_dates_as_other_days() -> None:
    OwnColumn.model_validate({"date-formats": ["%Y-%m-%d", "%Y/%d/%m"]})
    with pytest.raises(ValidationError, match="read ISO 8601 as other days"):
        OwnColumn.model_validate({"date-formats": ["%Y-%d-%m"]})
