"""Whatever is in a cell, reading a table does not raise, and no record touches another one."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.sources.csv_rows import Form
from hdpfl_tools.tables.table_records import TableRead, read_table
from tests.hdpfl_flower.data.schema_text import TEXT
from tests.hdpfl_tools.tables.test_table_records import read

SECRET = "PATIENT-123"
WITH_ID = Schema.parse('id = "who"\n' + TEXT)
HOSTILE = [
    *(SECRET.encode(), b"1e999", b"-1e999", b"1e-999", b"nan", b"NaN", b"inf", b"-inf", b"-0"),
    *("１".encode(), b"x" * 1_000_000, b"9" * 1_000_000, b"\x00", b"1\x002", b"\xff\xfe"),
    *(b"\xed\xa0\x80", b"=cmd()", b"1_000", b"0x10", b"", b"?", b" ", b"\t", b"\x0b", b"\x1c"),
    *("\u2028".encode(), "\u00a0".encode(), b"1,5", b'"', b'""', b'"a', b'a"b', b"1e", b"."),
    *(b"\xc2\x85", b"'", b"\\", b"\xef\xbb\xbf", b"1" + b"0" * 400, b"True", b"None"),
]


def check(got: TableRead) -> None:
    features = got.records.features
    assert np.isfinite(features).all()
    assert (np.abs(features) <= 1).all()
    assert [repr(got), f"{got}"] == ["TableRead(<private>)"] * 2
    assert [repr(got.summary), f"{got.summary}"] == ["Summary(<private>)"] * 2


@pytest.mark.parametrize("column", range(5))
def test_hostile_cells_harm_nobody(tmp_path: Path, column: int) -> None:
    rows = [[b"p%d" % i, b"%d" % i, b"1", b"0.5", b"yes"] for i in range(4)]
    clean = read(tmp_path, b"\n".join([b"who,a,c,d,y", *map(b",".join, rows)]), WITH_ID)
    wrong = {}
    for cell in HOSTILE:
        rows[2][column] = cell
        got = read(tmp_path, b"\n".join([b"who,a,c,d,y", *map(b",".join, rows)]), WITH_ID)
        try:
            check(got)
            others_stay(got, clean)
        except AssertionError as error:
            wrong[cell[:12]] = str(error)
    assert wrong == {}


def others_stay(got: TableRead, clean: TableRead) -> None:
    for row in (0, 1, 3):
        at = got.positions.tolist().index(row)
        np.testing.assert_array_equal(got.records.features[at], clean.records.features[row])
        assert got.records.targets[at] == clean.records.targets[row]
        assert got.ids[at] == b"p%d" % row


no_breaks = st.binary(max_size=12).filter(lambda line: not set(line) & set(b"\r\n"))
lines = st.one_of(
    no_breaks,
    st.lists(st.one_of(st.sampled_from(HOSTILE), no_breaks), min_size=4, max_size=4).map(b",".join),
    st.lists(st.one_of(st.floats().map(str), st.text(max_size=6)), min_size=4, max_size=4).map(
        lambda cells: ",".join(cells).encode(errors="surrogatepass")
    ),
).filter(lambda line: line.strip() != b"" and not set(line) & set(b"\r\n"))


@settings(max_examples=150)
@given(st.lists(lines, min_size=1, max_size=5), lines, st.data())
def test_one_line_decides_about_one_record(
    tmp_path: Path, table: list[bytes], other: bytes, data: st.DataObject
) -> None:
    """Whatever its bytes, as long as the quotes of each of the others pair."""
    changed = data.draw(st.integers(0, len(table) - 1))
    table = [
        line if at == changed or line.count(b'"') % 2 == 0 else line.replace(b'"', b"")
        for at, line in enumerate(table)
    ]
    assume(all(line.strip() for line in table))
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


PARTS = ("p1,9,1,0.5,yes", "p2", "\n", "\r", "\r\n", '"', '""', ",", ";", "yes", "7", " ", "\x85",
         "\u2028", "\x0b", "\x1c", "\0", "ü", "\u0a05\u0100", "x" * 140_000)  # fmt: skip
cells = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=3)), max_size=6).map("".join)


@settings(max_examples=250)
@given(
    rows=st.lists(st.lists(cells, min_size=5, max_size=5), max_size=2),
    at=st.integers(0, 4),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.sampled_from(",;\t|"),
    encoding=st.sampled_from(["utf-8", "cp1252", "mac-roman"]),
)
def test_no_content_of_a_record_that_a_csv_writer_wrote_changes_another(
    tmp_path: Path, rows: list[list[str]], at: int, quoting: int, end: str, mark: str, encoding: str
) -> None:
    """Records are added whose cells hold line ends, quotes and whole records of others."""
    others = [[f"p{i}", str(i), "1", 'a, "note"\nof two lines', "yes"] for i in range(4)]
    table = [*others[:at], *([f"new{i}", *row[1:]] for i, row in enumerate(rows)), *others[at:]]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, quoting=quoting, delimiter=mark, lineterminator=end)  # type: ignore[arg-type]
    writer.writerows([["who", "a", "c", "d", "y"], *table])
    path = tmp_path / "table.csv"
    errors = "surrogatepass" if encoding.startswith("utf") else "replace"
    path.write_bytes(buffer.getvalue().encode(encoding, errors))
    got = read_table(path, "csv", WITH_ID, OwnTable(Form(encoding)), every_record=True)
    check(got)
    assert got.ids is not None
    assert got.summary.rows == len(table)
    assert got.summary.left_out["cannot be cut into cells"] == 0
    assert [name for name in got.ids if not name.startswith(b"new")] == [b"p0", b"p1", b"p2", b"p3"]
    for i in range(4):
        row = got.ids.index(b"p%d" % i)
        assert got.positions[row] == i + len(rows) * (i >= at)
        one = read(tmp_path, b"who,a,c,d,y\np,%d,1,,yes" % i, WITH_ID)
        np.testing.assert_array_equal(got.records.features[row], one.records.features[0])


DISPLACED = 'who,a,c,d,y\np0,1,1,"{}p1,9,1,0.5,yes{}",no\np1,2,1,0.5,no\n'


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x85", "\u2028", "\x0c", "\x1e"])
def test_the_text_of_one_person_is_not_the_record_of_another(tmp_path: Path, end: str) -> None:
    got = read(tmp_path, DISPLACED.format(end, end).encode(), WITH_ID)
    assert got.ids == (b"p0", b"p1")
    assert got.records.targets.tolist() == [0, 0]


@pytest.mark.parametrize("end", ["\r", "\r\r"])
def test_a_carriage_return_outside_of_quotes_ends_no_line(tmp_path: Path, end: str) -> None:
    got = read(tmp_path, f"who,a,c,d,y\np0,1,1,x{end}p1,9\np1,2,1,0.5,no".encode(), WITH_ID)
    assert got.ids == (b"p1",)
    assert got.summary.rows == 2
    assert got.records.targets.tolist() == [0]


def test_a_file_of_carriage_returns_alone_is_declined_by_its_header(tmp_path: Path) -> None:
    for data in (b"a,c,d,y\r1,1,1,yes\r", b'a,c,d,y\r1,1,"x\ny",yes\r2,1,1,no'):
        with pytest.raises(DataError, match="only a carriage return"):
            read(tmp_path, data)
    assert len(read(tmp_path, b'a,c,d,y,"no\rte"\r\n1,1,1,yes,\r\r\n').records) == 1


def test_damaged_quotes_lose_their_own_line(tmp_path: Path) -> None:
    """None that the next quote closes as RFC 4180 says takes others with it."""
    rows = [b'"p0,1,1,0.5,yes', b"p1,1,1,0.5,yes", b'p2,"1" x,1,0.5,yes', b'p3,1,1,5",yes',
            b'p4,1,"1,0.5,yes', b'"p5",1,1,"a\nb",yes', b'p6,1,1,"0.5,yes']  # fmt: skip
    got = read(tmp_path, b"\n".join([b"who,a,c,d,y", *rows]), WITH_ID)
    assert got.ids == (b"p1", b"p3", b"p5")
    assert got.summary.rows == 7
