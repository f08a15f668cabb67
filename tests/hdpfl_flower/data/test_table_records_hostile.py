"""Whatever is in a cell, reading a table does not raise, and no record touches another one."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hdpfl_flower.data.schema import Schema
from hdpfl_flower.data.table_records import TableRead, read_table
from tests.hdpfl_flower.data.schema_text import TEXT

SECRET = "PATIENT-123"
SCHEMA = Schema.parse(TEXT)
WITH_ID = Schema.parse('id = "who"\n' + TEXT)
HOSTILE = [
    *(SECRET.encode(), b"1e999", b"-1e999", b"1e-999", b"nan", b"NaN", b"inf", b"-inf", b"-0"),
    *("１".encode(), b"x" * 1_000_000, b"9" * 1_000_000, b"\x00", b"1\x002", b"\xff\xfe"),
    *(b"\xed\xa0\x80", b"=cmd()", b"1_000", b"0x10", b"", b"?", b" ", b"\t", b"\x0b", b"\x1c"),
    *("\u2028".encode(), "\u00a0".encode(), b"1,5", b'"', b'""', b'"a', b'a"b', b"1e", b"."),
    *(b"\xc2\x85", b"'", b"\\", b"\xef\xbb\xbf", b"1" + b"0" * 400, b"True", b"None"),
]


def read(tmp_path: Path, data: bytes, schema: Schema = SCHEMA) -> TableRead:
    path = tmp_path / "table.csv"
    path.write_bytes(data)
    return read_table(path, "csv", schema)


def check(got: TableRead) -> None:
    features = got.records.features
    assert np.isfinite(features).all()
    assert (np.abs(features) <= 1).all()
    assert [repr(got), f"{got}"] == ["TableRead(<private>)"] * 2
    assert [repr(got.summary), f"{got.summary}"] == ["Summary(<private>)"] * 2


@pytest.mark.parametrize("cell", HOSTILE, ids=lambda cell: repr(cell[:12]))
@pytest.mark.parametrize("column", range(5))
def test_hostile_cells_harm_nobody(tmp_path: Path, cell: bytes, column: int) -> None:
    rows = [[b"p%d" % i, b"%d" % i, b"1", b"0.5", b"yes"] for i in range(4)]
    clean = read(tmp_path, b"\n".join([b"who,a,c,d,y", *map(b",".join, rows)]), WITH_ID)
    rows[2][column] = cell
    got = read(tmp_path, b"\n".join([b"who,a,c,d,y", *map(b",".join, rows)]), WITH_ID)
    check(got)
    for row in (0, 1, 3):
        at = got.positions.tolist().index(row)
        np.testing.assert_array_equal(got.records.features[at], clean.records.features[row])
        assert got.records.targets[at] == clean.records.targets[row]
        assert got.ids is not None
        assert got.ids[at] == b"p%d" % row


no_breaks = st.binary(max_size=12).filter(lambda line: not set(line) & set(b"\r\n"))
lines = st.one_of(
    no_breaks,
    st.lists(st.one_of(st.sampled_from(HOSTILE), no_breaks), min_size=4, max_size=4).map(b",".join),
    st.lists(st.one_of(st.floats().map(str), st.text(max_size=6)), min_size=4, max_size=4).map(
        lambda cells: ",".join(cells).encode(errors="surrogatepass")
    ),
).filter(lambda line: line.strip() != b"" and not set(line) & set(b"\r\n"))


@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(st.lists(lines, min_size=1, max_size=5), lines, st.data())
def test_one_line_decides_about_one_record(
    tmp_path: Path, table: list[bytes], other: bytes, data: st.DataObject
) -> None:
    changed = data.draw(st.integers(0, len(table) - 1))
    swapped = [*table]
    swapped[changed] = other
    both = [read(tmp_path, b"\n".join([b"a,c,d,y", *rows])) for rows in (table, swapped)]
    seen = []
    for got in both:
        check(got)
        assert got.summary.rows == len(table)
        seen.append(
            {
                row: (got.records.features[at].tobytes(), int(got.records.targets[at]))
                for at, row in enumerate(got.positions.tolist())
                if row != changed
            }
        )
    assert seen[0] == seen[1]


@settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.lists(st.text(max_size=8), min_size=4, max_size=4), min_size=1, max_size=5))
def test_any_text_that_a_csv_writer_writes_is_read(tmp_path: Path, rows: list[list[str]]) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "c", "d", "y"], *rows])
    check(read(tmp_path, buffer.getvalue().encode(errors="surrogatepass")))
