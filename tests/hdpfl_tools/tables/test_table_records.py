"""A site's table: what each cell, line and file becomes."""

from __future__ import annotations

import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.table_records import TableRead, features_only, read_table
from tests.hdpfl_flower.data.schema_text import TEXT

SECRET = "PATIENT-123"
SCHEMA = Schema.parse(TEXT)
WITH_ID = Schema.parse('id = "who"\n' + TEXT)
REGRESSION = Schema.parse(
    '[label]\ncolumn = "y"\nbounds = [0, 70]\n'
    '[[columns]]\nname = "a"\ntype = "number"\nbounds = [0, 10]\n'
)


def read(tmp_path: Path, data: bytes, schema: Schema = SCHEMA) -> TableRead:
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    return read_table(path, "csv", schema)


def read_arrow(tmp_path: Path, table: pa.Table, schema: Schema = SCHEMA) -> TableRead:
    path = tmp_path / "table.parquet"
    pq.write_table(table, path)
    return read_table(path, "parquet", schema)


# What a cell becomes


def test_cells_are_scaled_filled_clipped_and_counted(tmp_path: Path) -> None:
    got = read(
        tmp_path,
        b"a,c,d,y,other\n"
        b"0,1,1,no,x\n"  # as it is
        b"10, 2.0 ,-1,yes,x\n"
        b'5,"rot, gr\xc3\xbcn",0.5,2.0,"x,y"\n'
        b"-3,9,7,1,x\n"  # clipped, unknown, clipped
        b"?,,0,0,x\n"  # missing, missing, missing in this column alone
        b"abc,NA,,+1e0,x\n"  # unreadable, missing, missing
        b"1,1,1,3,x\n"  # unknown label
        b"1,1,1,?,x\n",  # missing label
    )
    np.testing.assert_allclose(
        got.records.features,
        [
            *([-1, 1, 0, 0, 1], [1, 0, 1, 0, -1], [0, 0, 0, 1, 0.5], [-1, 0, 1, 0, 1]),
            *([-0.5, 0, 1, 0, 0], [-0.5, 0, 1, 0, 0]),
        ],
    )
    assert got.records.features.dtype == np.float32
    assert got.records.targets.dtype == np.int64
    assert got.records.targets.tolist() == [0, 1, 1, 1, 0, 1]
    assert got.positions.tolist() == [0, 1, 2, 3, 4, 5]
    summary = got.summary
    assert summary.rows == 8
    assert summary.left_out == {"cannot be cut into cells": 0, "no known label": 2}
    assert summary.filled == {"a": 2, "c": 3, "d": 2}
    assert summary.unreadable == {"a": 1, "c": 1, "d": 0}
    assert summary.clipped == {"a": 1, "d": 1}


def test_regression_targets_are_scaled_to_one(tmp_path: Path) -> None:
    got = read(tmp_path, b"y,a\n0,1\n35,1\n70,1\n99,1\n?,1\nnan,1\n1e999,1\nx,1\n", REGRESSION)
    assert got.records.targets.dtype == np.float32
    assert got.records.targets.tolist() == [0, 0.5, 1, 1]
    assert got.summary.left_out["no known label"] == 4
    assert got.summary.clipped["y"] == 1
    np.testing.assert_allclose(
        REGRESSION.label.unscale(np.array([0, 0.5, 1], np.float32)), [0, 35, 70]
    )


# The file


def test_line_ends_byte_order_mark_quotes_and_delimiters_do_not_matter(tmp_path: Path) -> None:
    plain = b"a,c,d,y\n3,1,0.5,no\n4,2,-0.5,yes\n"
    want = read(tmp_path, plain)
    for data in (
        plain.replace(b"\n", b"\r\n"),
        plain.replace(b"\n", b"\r\r\n"),
        b"\xef\xbb\xbf" + plain,
        b"\xef\xbb\xbf" + b'"a","c","d","y"\n"3","1","0.5","no"\n"4", "2","-0.5","yes"',
        plain.replace(b",", b";"),
        plain.replace(b",", b"\t"),
        plain.replace(b",", b" , "),
        b"\n\n" + plain.replace(b"\n", b"\n\n") + b"  \n",
        b"more,a,c,d,y,more\n,3,1,0.5,no,\nx,4,2,-0.5,yes,y\n",
    ):
        got = read(tmp_path, data)
        np.testing.assert_array_equal(got.records.features, want.records.features)
        np.testing.assert_array_equal(got.records.targets, want.records.targets)
        assert got.summary == want.summary


def test_ragged_lines_are_left_out_alone(tmp_path: Path) -> None:
    got = read(
        tmp_path,
        b"a,c,d,y\n1,1,1,no\n"
        b"1,1,1\n1,1,1,no,\n"  # too few, too many
        b'1,1,1,"no\n'  # a quote that does not close swallows nothing
        b'1,"x""y",1,yes\n'
        b'1,"x"y,1,yes\n'
        b'1,"x\ny",1,yes\n'  # a line break in quotes: one record
        b"1,1,1,yes\n",
    )
    assert got.records.targets.tolist() == [0, 1, 1, 1]
    assert got.positions.tolist() == [0, 4, 6, 7]
    assert got.summary.rows == 8
    assert got.summary.left_out["cannot be cut into cells"] == 4


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[bytes, str]] = [
        (b"", "the table is empty"),
        (b"\xef\xbb\xbf\n \n", "the table is empty"),
        (b"1,2\n", "no column 'y', 'a', 'c', 'd'"),
        (b"PK\x03\x04" + SECRET.encode(), "zip archive"),
        (b"\xd0\xcf\x11\xe0\n", "an Office document that is no workbook"),
        (b"a,c,y\n1,2,3\n", "no column 'd'"),
        (b"a,c,d,a,y\n1,2,3,4,5\n", "column 'a' twice"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "an image, not a CSV"),
        (SECRET.encode() + b",1,2,3\n", "no column"),
        ("a,c,d,y\n1,1,1,no\n".encode("utf-16"), "save it as CSV"),
        (b'a,c,d,"y\n', "no column"),
    ]
    for data, words in cases:
        with pytest.raises(DataError, match=words) as caught:
            read(tmp_path, data)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
    for kind in ("csv", "parquet"):
        for path in (tmp_path / SECRET, tmp_path):
            with pytest.raises(DataError, match=r"not there|folder without") as caught:
                read_table(path, kind, SCHEMA)
            assert SECRET not in str(caught.value)
    (tmp_path / "not.parquet").write_bytes(b"PAR1" + SECRET.encode() * 50 + b"PAR1")
    with pytest.raises(DataError, match="not a readable Parquet") as caught:
        read_table(tmp_path / "not.parquet", "parquet", SCHEMA)
    assert SECRET not in str(caught.value)
    with pytest.raises(DataError, match="'csv' or 'parquet'"):
        read_table(tmp_path / "x", "excel", SCHEMA)


def test_prediction_needs_neither_label_nor_id(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_bytes(b"a,c,d\n10,1,1\nragged\n?,2,-1\n")
    features, positions, summary, changed = features_only(path, "csv", WITH_ID)
    want = np.array([[1, 1, 0, 0, 1], [-0.5, 0, 1, 0, -1]])
    np.testing.assert_allclose(features, want)
    assert positions.tolist() == [0, 2]
    assert summary.left_out["cannot be cut into cells"] == 1
    assert changed == [[], ["a filled"]]


# Parquet


def test_parquet_types_read_as_their_text_does(tmp_path: Path) -> None:
    want = read(tmp_path, b"a,c,d,y\n3,1,-1,no\n,2,1,1\n")
    whole = {
        "a": [
            pa.array([3, None], kind)
            for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64())
        ]
        + [pa.array(["3", None], kind) for kind in (pa.string(), pa.large_string())]
        + [pa.array(["3.0", "?"]).dictionary_encode(), pa.array([b"3", b""], pa.large_binary())]
        + [pa.array([decimal.Decimal("3.00"), None]), pa.array([3.0, np.nan])],
        "c": [pa.array([1, 2]), pa.array(["1", " 2"]), pa.array([1.0, 2.0]).dictionary_encode()],
        "d": [pa.array([-1, 1]), pa.array(["-1", "1"])],
        "y": [pa.array(["no", "1"]), pa.array([0, 2]), pa.array([0.0, 1.0])],
    }
    whole["y"].append(pa.array([False, True]))
    for name, columns in whole.items():
        for column in columns:
            parts = {other: values[0] for other, values in whole.items()} | {name: column}
            got = read_arrow(tmp_path, pa.table(parts))
            np.testing.assert_array_equal(got.records.features, want.records.features)
            np.testing.assert_array_equal(got.records.targets, want.records.targets)
            assert got.summary == want.summary


# Units


def test_a_unit_has_one_record(tmp_path: Path) -> None:
    got = read(
        tmp_path,
        b"who,a,c,d,y\n7,1,1,1,?\n7,2,1,1,no\n 7.0,3,1,1,no\nz,4,1,1,yes\n"
        b"?,5,1,1,no\n,6,1,1,no\nz ,7,1,1,no\n07,8,1,1,no\n",
        WITH_ID,
    )
    assert got.ids == (b"7", b"z", b"07")
    assert got.positions.tolist() == [1, 3, 7]
    left_out = got.summary.left_out
    assert left_out.pop("cannot be cut into cells") == 0
    assert left_out == {"no known label": 1, "no id": 2, "repeated id": 2}
