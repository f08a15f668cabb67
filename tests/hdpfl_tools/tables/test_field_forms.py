"""Forms of tables that exporters write: headers, quotes, blanks, dates and marked numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.columns import days_in
from hdpfl_flower.data.schema import Schema
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.table_records import TableRead, read_table
from tests.hdpfl_flower.data.schema_text import TEXT

SCHEMA = Schema.parse(TEXT)
NUMBER = Schema.parse(
    '[label]\ncolumn = "y"\nclasses = [["0"], ["1"]]\n'
    '[[columns]]\nname = "a"\ntype = "number"\nbounds = [-100, 100]\n'
)
ROWS = "3,1,0.5,no\n4,2,-0.5,yes\n"


def read(path: Path, text: str, schema: Schema = SCHEMA, **data: object) -> TableRead:
    (path / "t.csv").write_text(text, newline="")
    source = DataSource.model_validate({"format": "csv", "path": "t.csv", **data})
    return read_table(path / "t.csv", "csv", schema, OwnTable.of(source))


@pytest.mark.parametrize(
    "text",
    [
        "sep=,\n" + "a,c,d,y\n" + ROWS,
        '"sep=;"\r\n' + ("a;c;d;y\r\n" + ROWS.replace("\n", "\r\n")).replace(",", ";"),
        "SEP=\t\na\tc\td\ty\n" + ROWS.replace(",", "\t"),
        "Patients of the ward\nfrom 1.1.2024, to 31.12.2024\n\na,c,d,y\n" + ROWS,
        'Report,,,\n"of\ntwo lines",,,\na,c,d,y\n' + ROWS,
        "a,c,d,y,\n" + ROWS.replace("\n", ",\n"),
        "a,c,d,y,,\n" + ROWS,
        ',a,c,d,y\n"1",' + ROWS.replace("\n4", '\n"2",4'),
        "a\u00a0,c,\u200bd,y\n" + ROWS,
        '"a","c","d ","y"\n' + ROWS.replace("no", '"no" '),
        "b,b,a,c,d,y\n0,0," + ROWS.replace("\n4", "\n0,0,4"),
    ],
)
def test_headers_of_exporters_are_found(tmp_path: Path, text: str) -> None:
    want, got = read(tmp_path, "a,c,d,y\n" + ROWS), read(tmp_path, text)
    np.testing.assert_array_equal(got.records.features, want.records.features)
    np.testing.assert_array_equal(got.records.targets, want.records.targets)
    assert got.summary == want.summary
    assert got.positions.tolist() == [0, 1]


@pytest.mark.parametrize(
    "note",
    [
        r'"said \"no\", and left"',
        r'"\"odd"',
        '"two \\"lines\\"\nof one"',
        '"C:\\"',
        '"a ""b"", c"',
        '"a\n\nb"',
        'a "b" c',
    ],
)
def test_quotes_of_exporters_lose_no_row(tmp_path: Path, note: str) -> None:
    rows = [f"{i},{note if i % 2 else 'ok'},{i % 2}" for i in range(6)]
    got = read(tmp_path, "\n".join(["a,note,y", *rows]), NUMBER)
    assert got.positions.tolist() == [*range(6)]
    assert got.summary.rows == 6
    assert got.records.targets.tolist() == [0, 1] * 3


def test_a_backslash_before_a_quote_is_one_where_rfc_4180_reads_the_row(tmp_path: Path) -> None:
    r"""Written: a folder C:\, the label 1, and a note ', dry'."""
    got = read(tmp_path, 'a,folder,y,note\n5,"C:\\",1,", dry"\n6,"D:\\",0,ok\n', NUMBER)
    assert got.positions.tolist() == [0, 1]
    assert got.records.targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("\u22125", -5), ("\u20135", -5), ("5\u00a0", 5), ("\u20095\u200b", 5), ("\ufeff5", 5),
        ("\u201c5\u201d", 5), ("5\u2212", None), ("\u2212", None), ("5\u00a06", None),
    ],
)  # fmt: skip
def test_unicode_signs_are_read(tmp_path: Path, cell: str, number: float | None) -> None:
    got = read(tmp_path, f"a,y\n{cell},1\n", NUMBER)
    assert got.summary.unreadable["a"] == (number is None)
    assert got.records.features[0, 0] == np.float32((number or 0) / 100)


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("<3", 1.5), ("< 3 mg/l", 1.5), ("≤3", 1.5), ("<= 3", 1.5), (">30", 30), ("≥ 30%", 30),
        ("7.5 mg/l", 7.5), ("mg/l 7.5", 7.5), ("7.5%", 7.5), ("7.5 g", None), ("<", None),
        ("<<3", None), ("< -3", -1.5),
    ],
)  # fmt: skip
def test_limits_and_units_are_read_by_keys(tmp_path: Path, cell: str, number: float | None) -> None:
    how: dict[str, object] = {"below-limit": "half", "strip": ["mg/l", "%"]}
    got = read(tmp_path, f"a,y\n{cell},1\n", NUMBER, columns={"a": how})
    assert got.summary.unreadable["a"] == (number is None)
    assert got.records.features[0, 0] == np.float32((number or 0) / 100)
    how |= {"below-limit": "limit", "factor": 2.0}
    got = read(tmp_path, f"a,y\n{cell},1\n", NUMBER, columns={"a": how})
    limit = abs(number or 0) * (4 if cell[0] in "<≤" else 2) * (-1 if "-" in cell else 1)
    assert got.records.features[0, 0] == np.float32(limit / 100)
    assert read(tmp_path, f"a,y\n{cell},1\n", NUMBER).summary.unreadable["a"] == 1


@pytest.mark.parametrize(
    ("text", "form", "century"),
    [
        ("2022-05-24T13:28:17-05:00", "%Y-%m-%dT%H:%M:%S%z", 0),
        ("2022-05-24T08:00:00Z", "%Y-%m-%dT%H:%M:%S%z", 0),
        ("2022-05-24 08:00:00.1234567", "%Y-%m-%d %H:%M:%S.%f", 0),
        ("24MAY2022", "%d%b%Y", 0),
        ("24-may-22", "%d-%b-%y", 1950),
        ("24MAY2022:08:00:00", "%d%b%Y:%H:%M:%S", 0),
        ("24.05.22", "%d.%m.%y", 1923),
    ],
)
def test_dates_of_exporters_are_days(text: str, form: str, century: int) -> None:
    assert days_in(text.encode(), (form,), century) == 19136
    if century:
        assert days_in(text.encode(), (form,), 1900) == 19136 - 36525
    # No text raises, and no month of another language is one.
    for wrong in ("24MAI2022", "29FEB1900", "\u017fep", "24-FEBMAY-22", text + "x", "%b"):
        assert np.isnan(days_in(wrong.encode(), (form,), century))
