"""A site's data: no record raises, none moves another one, and nothing private is shown."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import itertools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from hdpfl_tools.tables.site_data import SiteData, read_site_data, read_unit_records

SECRET = "PATIENT-123"
TEXT = """
[label]
column = "y"
classes = [["0"], ["1"]]
[[columns]]
name = "a"
type = "number"
bounds = [0, 1000]
"""
WITH_ID = 'id = "who"\n' + TEXT
TABLE = Schema.parse(TEXT).task
VECTORS = Task.classification((3,), 4)


def source(path: Path, file_format: str, holdout: float = 0.0, unit: str = "") -> DataSource:
    data = {"format": file_format, "path": str(path), "holdout": holdout, "id": unit}
    return DataSource.model_validate(data)


def write_csv(path: Path, rows: list[str], header: str = "a,y") -> Path:
    path.write_text("\n".join([header, *rows]))
    return path


def save(path: Path, **arrays: npt.NDArray[Any]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def read_npz(path: Path, task: Task = VECTORS, **arrays: npt.NDArray[Any]) -> SiteData:
    return read_site_data(source(save(path / "d.npz", **arrays), "npz"), task, "")


def refused(path: Path, file_format: str, task: Task, schema: str = "") -> str:
    with pytest.raises(DataError) as caught:
        read_site_data(source(path, file_format), task, schema)
    text = str(caught.value)
    assert SECRET not in text
    assert "\n" not in text
    assert caught.value.__cause__ is None
    return text


# Tables


def test_a_table_needs_the_schema_of_the_runs_task(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", ["10,1", "20,0"])
    data = read_site_data(source(path, "csv"), TABLE, TEXT)
    assert data.train.targets.tolist() == [1, 0]
    assert data.test is None
    assert data.ids is None
    assert "needs the run's 'schema'" in refused(path, "csv", TABLE)
    assert "does not describe the task" in refused(path, "csv", VECTORS, TEXT)
    assert "no built-in" in refused(path, "csv", TABLE, "hart")
    assert "not there" in refused(tmp_path / SECRET, "csv", TABLE, TEXT)


# The holdout


def test_the_share_is_held_out_and_the_parts_are_the_whole(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [f"{i / 4},{i % 2}" for i in range(4000)])
    whole = read_site_data(source(path, "csv"), TABLE, TEXT).train
    data = read_site_data(source(path, "csv", 0.25), TABLE, TEXT)
    # Binomial(4000, 1/4): beyond 6 standard deviations in fewer than 1e-8 of all keys.
    assert abs(len(data.test) - 1000) < 6 * np.sqrt(4000 * 0.25 * 0.75)
    both = np.concatenate([data.train.features, data.test.features])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(whole.features, axis=0))
    again = read_site_data(source(path, "csv", 0.25), TABLE, TEXT)
    np.testing.assert_array_equal(again.train.features, data.train.features)


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 999), st.sampled_from("01x"))),
    more=st.tuples(st.integers(100, 199), st.integers(0, 999), st.sampled_from("01x")),
    at=st.integers(0, 99),
    named=st.booleans(),
)
def test_adding_a_record_moves_no_other_one(
    tmp_path: Path,
    rows: list[tuple[int, int, str]],
    more: tuple[int, int, str],
    at: int,
    named: bool,
) -> None:
    schema = WITH_ID if named else TEXT
    sides = []
    for table in (rows, [*rows[:at], more, *rows[at:]]):
        lines = [f"{who},{a},{y}" for who, a, y in table]
        path = write_csv(tmp_path / "t.csv", lines, "who,a,y")
        data = read_site_data(source(path, "csv", 0.5, "who" if named else ""), TABLE, schema)
        assert data.test is not None
        sides.append([part.features[:, 0].tolist() for part in (data.train, data.test)])
    before, after = sides
    gained = [len(after[i]) - len(before[i]) for i in (0, 1)]
    assert sorted(gained) in ([0, 0], [0, 1])
    for i in (0, 1):
        if gained[i] == 0:
            assert after[i] == before[i]
        else:
            assert any(after[i][:j] + after[i][j + 1 :] == before[i] for j in range(len(after[i])))


def test_a_unit_stays_on_its_side_whatever_its_record_says(tmp_path: Path) -> None:
    sides = []
    for value in ("1", "2", "999"):
        lines = [f"p{i},{value},1" for i in range(50)]
        path = write_csv(tmp_path / "t.csv", lines, "who,a,y")
        data = read_site_data(source(path, "csv", 0.5, "who"), TABLE, WITH_ID)
        assert len(data.ids) == len(data.train)
        sides.append(data.ids)
    assert sides[0] == sides[1] == sides[2]
    assert 0 < len(sides[0]) < 50


ROWS = [{"who": f"p{i}", "a": i % 7, "b": i / 2, "note": f"n{i}", "y": i % 2} for i in range(80)]


def schemas(unit: str) -> Iterator[str]:
    """Yield what a server may send: moved bounds, other columns, fills, orders, aliases."""
    for i in range(20):
        number = f'type = "number"\nbounds = [0, {100 + i / 1000}]\nfill = {i}\n'
        columns = [f'[[columns]]\nname = "a"\n{number}', f'[[columns]]\nname = "b"\n{number}',
                   f'[[columns]]\nname = "z"\naliases = ["note"]\n{number}']  # fmt: skip
        classes = '[["1"], ["0"]]' if i % 3 else '[["0", "x"], ["1"]]'
        label = f'[label]\ncolumn = "y"\nclasses = {classes}\n'
        yield f"{unit and f'id = {unit!r}'}\n{label}" + "".join(columns[i % 3 :: 1 + i % 2])


def held_out(
    path: Path, form: str, schema: str, rows: list[dict[str, Any]], unit: str = ""
) -> set[int]:
    """Return which of ``rows``, by their number in ``b``, are held out."""
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), quoting=csv.QUOTE_NONNUMERIC)
            writer.writeheader()
            writer.writerows(rows)
    read = read_unit_records(source(path, form, 0.4, unit), Schema.parse(schema).task, schema)
    return {round(2 * rows[at]["b"]) for at in read.positions[read.held_out].tolist()}


@pytest.mark.parametrize("unit", ["", "who"])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_no_schema_draws_the_holdout_again(tmp_path: Path, form: str, unit: str) -> None:
    """After 20 runs a server that could would have had every record held out once."""
    drawn = [held_out(tmp_path / "t", form, each, ROWS, unit) for each in schemas(unit)]
    assert 10 < len(drawn[0]) < 60
    assert all(each == drawn[0] for each in drawn)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_changed_table_draws_new_rows_alone(tmp_path: Path, form: str) -> None:
    schema = next(schemas(""))
    before = held_out(tmp_path / "t", form, schema, ROWS)
    order = np.random.default_rng(1).permutation(80)
    assert held_out(tmp_path / "t", form, schema, [ROWS[at] for at in order]) == before
    fewer = ROWS[:30] + ROWS[40:]
    assert held_out(tmp_path / "t", form, schema, fewer) == before - {*range(30, 40)}
    # One cell decides how a writer writes a column: as 7.0, in quotes, as text.
    for cell in (None, 0.5, 2**40):
        more = [*ROWS, {**ROWS[0], "a": cell, "b": 500.0}]
        rows = [{**row, "a": None if row["a"] is None else float(row["a"])} for row in more]
        assert held_out(tmp_path / "t", form, schema, rows) - {1000} == before
    texts = [{**row, "a": str(row["a"])} for row in ROWS]
    assert held_out(tmp_path / "t", form, schema, texts) == before


def test_every_column_of_a_row_counts(tmp_path: Path) -> None:
    """Rows that a schema takes for the same are drawn apart, and equal ones together."""
    schema = next(schemas("")).replace('"note"', '"other"')
    for column in ("note", "b"):
        rows = [{**ROWS[0], "b": 0.0, "other": 1, column: i / 2} for i in range(60)]
        for form in ("csv", "parquet"):
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t")
            if form == "csv":
                pa_csv.write_csv(pa.Table.from_pylist(rows), tmp_path / "t")
            where = source(tmp_path / "t", form, 0.5)
            out = read_unit_records(where, Schema.parse(schema).task, schema).held_out
            assert 10 < out.sum() < 50
    days = [dt.date(2020, 1, 1 + i) for i in range(28)]
    columns = {"d": days, "n": [[i] for i in range(28)], "y": [True] * 28, "a": [1] * 28}
    columns |= {"t": pa.array(["x"] * 28).dictionary_encode(), "z": pa.nulls(28)}
    pq.write_table(pa.table(columns), tmp_path / "t")
    out = read_unit_records(source(tmp_path / "t", "parquet", 0.5), TABLE, TEXT).held_out
    assert 2 < out.sum() < 26
    pq.write_table(pa.table({**columns, "d": pa.nulls(28)}), tmp_path / "t")
    out = read_unit_records(source(tmp_path / "t", "parquet", 0.5), TABLE, TEXT).held_out
    assert 2 < out.sum() < 26  # lists count, too
    columns["n"] = [[1]] * 28
    pq.write_table(pa.table({**columns, "d": pa.nulls(28)}), tmp_path / "t")
    out = read_unit_records(source(tmp_path / "t", "parquet", 0.5), TABLE, TEXT).held_out
    assert out.sum() in (0, 28)


def test_one_record_of_another_type_moves_no_array(tmp_path: Path) -> None:
    x, y = np.arange(180).reshape(60, 3), np.arange(60) % 4
    path = save(tmp_path / "d.npz", x=x.astype(np.int16), y=y.astype(np.int8))
    sides = [read_unit_records(source(path, "npz", 0.5), VECTORS, "").held_out.tolist()]
    for more in ([0.5, 1, 2], ["a long text", "1", "2"], [2**40, 1, 2]):
        save(path, x=np.array([*x.tolist(), more]), y=np.array([*y.tolist(), 1]))
        out = read_unit_records(source(path, "npz", 0.5), VECTORS, "").held_out
        sides.append(out[:60].tolist())
    assert 10 < sum(sides[0]) < 50
    assert all(side == sides[0] for side in sides)


def test_a_record_is_held_out_where_its_hash_is_below_the_share(tmp_path: Path) -> None:
    """Of a unit whose hash is a float64's share of 2⁶⁴ exactly, and of the next larger share."""

    def place(who: str) -> int:
        digest = hashlib.blake2b(who.encode(), digest_size=8, key=b"hdpfl holdout").digest()
        return int.from_bytes(digest, "big")

    who = next(f"p{i}" for i in itertools.count() if place(f"p{i}") % 2**12 == 0)
    share = place(who) / 2**64
    path = write_csv(tmp_path / "t.csv", [f"{who},1,1"], "who,a,y")
    for holdout, expected in ((share, 1), (np.nextafter(share, 1), 0), (share / 2, 1)):
        data = read_site_data(source(path, "csv", float(holdout), "who"), TABLE, WITH_ID)
        assert len(data.train) == expected


# Arrays


def test_npz_records_are_taken_by_the_terms(tmp_path: Path) -> None:
    x = np.arange(18.0).reshape(6, 3)
    x[1, 2], x[2, 0] = np.nan, 1e300
    y = np.array([0, 1, 2, 4, -1, 3])
    data = read_npz(tmp_path, x=x, y=y)
    np.testing.assert_array_equal(data.train.features, x[[0, 5]])
    assert data.train.features.dtype == np.float32
    assert data.train.targets.tolist() == [0, 3]
    assert data.train.targets.dtype == np.int64
    assert data.summary.rows == 6
    assert data.summary.left_out == {"features not finite": 2, "no known label": 2}
    y = np.array([0.0, 0.5, np.nan, np.inf, 3.0, 1e300])
    assert read_npz(tmp_path, x=np.ones((6, 3)), y=y).train.targets.tolist() == [0, 3]
    data = read_npz(tmp_path, Task.regression((3,)), x=np.ones((6, 3)), y=y)
    assert data.train.targets.tolist() == [0, 0.5, 3]
    assert data.train.targets.dtype == np.float32


def test_npz_shapes_and_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path = tmp_path / f"{SECRET}.npz"
    y = np.zeros(2)
    for shape in ((2, 4), (2, 3, 1), (2, 5, 3), (2,), (), (3, 3)):
        x = np.zeros(shape)
        assert "'x' of shape (n, 3)" in refused(save(path, x=x, y=y), "npz", VECTORS)
    assert "'y' of shape" in refused(save(path, x=np.zeros((2, 3)), y=y[:, None]), "npz", VECTORS)
    assert "must hold numbers" in refused(
        save(path, x=np.zeros((2, 3)), y=y.astype("M8[s]")), "npz", VECTORS
    )
    words = "not an .npz file with arrays 'x' and 'y'"
    assert words in refused(save(path, x=np.zeros((2, 3))), "npz", VECTORS)
    pickled = np.array([0, SECRET], dtype=object)
    assert words in refused(save(path, x=np.zeros((2, 3)), y=pickled), "npz", VECTORS)
    assert words in refused(tmp_path / "absent.npz", "npz", VECTORS)
    assert words in refused(tmp_path, "npz", VECTORS)
    good = save(path, x=np.zeros((2, 3)), y=y).read_bytes()
    for data in (b"", b"rubbish " + SECRET.encode(), good[:100], good[:-40]):
        path.write_bytes(data)
        assert words in refused(path, "npz", VECTORS)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': PATIENT")
        archive.writestr("y.npy", b"")
    assert words in refused(path, "npz", VECTORS)
    np.save(tmp_path / "one.npy", y)
    assert words in refused(tmp_path / "one.npy", "npz", VECTORS)


def test_a_schema_of_another_unit_than_the_sites_is_refused(tmp_path: Path) -> None:
    """The schema is the server's; the unit of protection is the site's."""
    path = write_csv(tmp_path / "d.csv", ["p1,1,0", "p1,2,0", "p2,3,1"], header="who,a,y")
    asked = source(path, "csv", unit="who")
    assert len(read_site_data(asked, TABLE, WITH_ID).train) == 2
    other = WITH_ID.replace("who", "a2")
    for where, schema in ((asked, TEXT), (asked, other), (source(path, "csv"), WITH_ID)):
        with pytest.raises(DataError, match="another unit"):
            read_site_data(where, TABLE, schema)
