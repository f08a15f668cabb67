"""A site's own names, units, numbers, dates and encodings become the schema's, cell by cell."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.site_data import read_site_data
from hdpfl_tools.tables.table_records import TableRead, features_only, read_table

SECRET = "PATIENT-123"
SCHEMA_TEXT = """
id = "who"
[label]
column = "outcome"
classes = [["no"], ["yes"]]
aliases = ["result"]
[[columns]]
name = "age"
type = "number"
bounds = [0, 100]
fill = 20
[[columns]]
name = "chol"
type = "number"
bounds = [0, 1000]
aliases = ["Cholesterol", "Cholesterin"]
[[columns]]
name = "sex"
type = "category"
categories = [["f", "female", "1"], ["m", "male", "2"]]
"""
SCHEMA = Schema.parse(SCHEMA_TEXT)
MESSY = (
    "PatNr;Geburtsdatum;Aufnahme;Cholesterin;Geschlecht;Diagnose;Bemerkung\r\n"
    "7,0;01.03.1980;28.02.2020 08:15;5,17;W;größer;x\r\n"
    "8;1.3.1980;01.03.2020 23:59;1.000,5;M;kleiner;x;y\r\n"
    "9;1.3.1980;01.03.2020 23:59;1.000,5;M;kleiner;\r\n"
    "10;31.02.1980;01.03.2020 00:00;5.17;d;größer;\r\n"
    "11;k.A.;01.03.2020 00:00;k.A.;;kleiner;\r\n"
    "12;01.03.1980;k.A.;-;W;größer;\r\n"
    "13;01.03.2021;01.03.2020 00:00;1e1;m;kleiner;\r\n"
    "14;01.03.1980;gestern;0;1;kleiner;\r\n"
)
SITE: dict[str, Any] = {
    "encoding": "latin-1",
    "decimal": ",",
    "thousands": ".",
    "missing": ["k.A."],
    "id": "who",
    "columns": {
        "who": {"name": "PatNr"},
        "age": {
            "name": "Geburtsdatum",
            "to": "age",
            "date-formats": ["%d.%m.%Y %H:%M", "%d.%m.%Y"],
            "reference": "Aufnahme",
        },
        "chol": {"factor": 38.67, "missing": ["-"]},
        "sex": {"name": "Geschlecht", "values": {"W": "female", "M": "m", "1": "m"}},
        "outcome": {"name": "Diagnose", "values": {"größer": "yes", "kleiner": "no"}},
    },
}


def source(path: Path, **keys: object) -> DataSource:
    return DataSource.model_validate({"format": "csv", "path": str(path), **keys})


def read(path: Path, data: bytes, schema: Schema = SCHEMA, **keys: object) -> TableRead:
    path = path / "t.csv"
    path.write_bytes(data)
    return read_table(path, "csv", schema, OwnTable.of(source(path, **keys)))


def test_a_messy_export_reads_as_the_schema_says(tmp_path: Path) -> None:
    got = read(tmp_path, MESSY.encode("latin-1"), **SITE)
    assert got.ids == (b"7", b"9", b"10", b"11", b"12", b"13", b"14")
    assert got.records.targets.tolist() == [1, 0, 1, 0, 1, 0, 0]
    ages = got.records.features[:, 0] * 50 + 50
    # On the day before the birthday, on it; no such date, missing twice, born later, no date.
    np.testing.assert_allclose(ages, [39, 40, 20, 20, 20, 20, 20], rtol=1e-6)
    chol = got.records.features[:, 1] * 500 + 500
    # A point is no decimal mark here, and 5.17 no group of three digits.
    want = [5.17 * 38.67, 1000, 500, 500, 500, 10 * 38.67, 0]
    np.testing.assert_allclose(chol, want, rtol=1e-5, atol=1e-3)
    sex = got.records.features[:, 2:].tolist()
    assert sex == [[1, 0], [0, 1], [0, 0], [0, 0], [1, 0], [0, 1], [0, 1]]
    assert got.summary.left_out["cannot be cut into cells"] == 1
    assert got.summary.filled == {"age": 5, "chol": 3, "sex": 2}
    assert got.summary.unreadable == {"age": 3, "chol": 1, "sex": 1}
    assert got.summary.clipped == {"age": 0, "chol": 1}
    prepared = tmp_path / "new.csv"
    lines = [line.split(";")[1:5] for line in MESSY.split("\r\n")]
    prepared.write_text("\n".join(map(";".join, lines)), encoding="latin-1")
    own = OwnTable.of(source(prepared, **SITE))
    features, _, _, changed = features_only(prepared, "csv", SCHEMA, own)
    np.testing.assert_array_equal(features[[0, *range(2, 8)]], got.records.features)
    assert ["; ".join(cells) for cells in changed] == [
        "", "chol clipped", "chol clipped", "age unknown; chol unknown; sex unknown",
        "age filled; chol filled; sex filled", "age filled; chol filled", "age unknown",
        "age unknown",
    ]  # fmt: skip


@pytest.mark.parametrize("alias", ["chol", "Cholesterol", "Cholesterin"])
def test_an_alias_is_found_and_two_of_them_are_refused(tmp_path: Path, alias: str) -> None:
    rows = f"age;{alias};sex;who;result\n50;750;male;1;yes\n"
    got = read(tmp_path, rows.encode())
    np.testing.assert_allclose(got.records.features, [[0, 0.5, 0, 1]])
    other = "chol" if alias == "Cholesterin" else "Cholesterin"
    both = f"age;{alias};sex;who;result;{other}\n50;750;male;1;yes;9\n".encode()
    with pytest.raises(DataError, match="column 'chol' twice, or under two of its names"):
        read(tmp_path, both)
    got = read(tmp_path, both, columns={"chol": {"name": alias}})
    np.testing.assert_allclose(got.records.features, [[0, 0.5, 0, 1]])


@pytest.mark.parametrize(
    ("encoding", "bom"),
    [("utf-8", b""), ("utf-8", b"\xef\xbb\xbf"), ("latin-1", b""),
     ("iso8859-15", b""), ("cp1252", b""), ("cp850", b""), ("mac-roman", b"")],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_encoding_reads_alike(tmp_path: Path, encoding: str, bom: bytes, end: str) -> None:
    text = end.join(["who|Größe|chol|sex|outcome", "ä|10|1|f|yes", '"ü"|20|"2"|m|no'])
    columns = {"age": {"name": "Größe"}}
    got = read(tmp_path, bom + text.encode(encoding), encoding=encoding, columns=columns)
    assert got.ids == ("ä".encode(), "ü".encode())
    np.testing.assert_allclose(got.records.features[:, 0], [-0.8, -0.6], rtol=1e-6)


NOTATIONS: dict[tuple[str, str], dict[str, float | None]] = {
    (",", ""): {"1,5": 1.5, "1.5": None, "+,5e1": 5},
    (",", "."): {"1.234": 1234, "-1.234.567,25": -1234567.25, "12.34": None, "1,234.5": None,
                 ".123": None},
    (".", ","): {"1,234.5": 1234.5, "1,5": None},
    (".", "'"): {"1'234.5": 1234.5},
    (",", " "): {"1 234,5": 1234.5, "1  234,5": None},
    (".", ""): {"1,5": None},
}  # fmt: skip
"""Decimal mark and mark of thousands → texts, and the numbers that they are."""


@pytest.mark.parametrize(
    ("decimal", "thousands", "text", "number"),
    [(*marks, text, number) for marks in NOTATIONS for text, number in NOTATIONS[marks].items()],
)
def test_numbers_are_those_of_the_notation(
    tmp_path: Path, decimal: str, thousands: str, text: str, number: float | None
) -> None:
    schema = Schema.parse(
        '[label]\ncolumn = "y"\nclasses = [["0"], ["1"]]\n'
        '[[columns]]\nname = "a"\ntype = "number"\nbounds = [-1e7, 1e7]\n'
    )
    keys = {"decimal": decimal, "thousands": thousands, "delimiter": ";"}
    got = read(tmp_path, f"a;y\n{text};1{decimal}0\n".encode(), schema, **keys)
    assert got.records.targets.tolist() == [1], "a class of a number has any spelling of it"
    assert got.summary.unreadable["a"] == (number is None)
    want = 0.0 if number is None else number / 1e7
    np.testing.assert_allclose(got.records.features, [[want]], rtol=1e-6)


def test_a_patients_number_keeps_its_groups_of_digits(tmp_path: Path) -> None:
    """With a decimal comma 1.000 is no 1, so that two patients stay two."""
    rows = "who;age;chol;sex;outcome\n1.000;1;1;f;no\n1;1;1;f;no\n1,0;1;1;f;no\n"
    got = read(tmp_path, rows.encode(), decimal=",")
    assert got.ids == (b"1.000", b"1")


def test_dates_become_days_and_units_act_afterwards(tmp_path: Path) -> None:
    columns = {"age": {"to": "days", "reference": "2024-12-31", "factor": -0.1, "offset": 1.0}}
    rows = "who,age,chol,sex,outcome\n1,2024-12-21,1,f,no\n2,2025-01-10,1,f,no\n"
    got = read(tmp_path, rows.encode(), columns=columns)
    np.testing.assert_allclose(got.records.features[:, 0] * 50 + 50, [2, 0], atol=1e-5)


def test_a_number_that_a_unit_makes_infinite_warns_nobody(tmp_path: Path) -> None:
    """A run's log would show the warning, and so that such a record exists."""
    columns = {"age": {"factor": 1e10}, "chol": {"factor": -1e10, "offset": 1.0}}
    rows = b"who,age,chol,sex,outcome\n1,1e300,1e300,f,no\n2,1e-9,0,f,no\n"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        got = read(tmp_path, rows, columns=columns)
    assert [str(each.message) for each in warned] == []
    assert got.summary.unreadable == {"age": 1, "chol": 1, "sex": 0}
    want = [[20, 500], [10, 1]]
    np.testing.assert_allclose((got.records.features[:, :2] + 1) * [50, 500], want, rtol=1e-4)


def test_a_mark_is_looked_up_before_the_unit(tmp_path: Path) -> None:
    columns = {"chol": {"factor": 10.0, "missing": ["9"]}}
    rows = b"who,age,chol,sex,outcome\n1,1,9,f,no\n2,1,0.9,f,no\n3,1,90,f,no\n"
    got = read(tmp_path, rows, columns=columns)
    chol = got.records.features[:, 1] * 500 + 500
    np.testing.assert_allclose(chol, [500, 9, 900], rtol=1e-5)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"sex": {"factor": 2.0}}, "'data.columns.sex' has 'factor', 'to', 'units' or another key"),
        ({"outcome": {"offset": 2.0}}, "'data.columns.outcome' has 'factor'"),
        ({"who": {"to": "age", "reference": "2020-01-01"}}, "'data.columns.who' has 'factor'"),
        ({"age": {"values": {SECRET: "1"}}}, "'data.columns.age.values' names a value"),
        ({"sex": {"values": {SECRET: "d"}}}, "'data.columns.sex.values' names a value"),
        ({"who": {"values": {SECRET: "d"}}}, "'data.columns.who.values' names a value"),
        ({"age": {"name": "outcome"}}, "'data.columns.age.name' is the column of the label"),
        ({"age": {"name": "result"}}, "'data.columns.age.name' is the column of the label"),
        ({"age": {"name": "who"}}, "'data.columns.age.name' is the column of the label or of"),
        ({"outcome": {"name": "who"}}, "'data.columns.outcome.name' is the column"),
        (
            {"age": {"name": SECRET}, "outcome": {"name": SECRET}},
            "'data.columns.age.name' is the column of the label",
        ),
        ({"age": {"name": SECRET}}, "no column of 'data.columns.age.name' for 'age'"),
        ({"age": {"to": "days", "reference": SECRET}}, "no column of 'data.columns.age.reference'"),
    ],
)
def test_bad_mappings_are_refused(tmp_path: Path, columns: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path, b"who,age,chol,sex,outcome\n1,2,3,f,no\n", columns=columns)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("encoding", "bad"), [("utf-8", b"\xff"), ("cp1252", b"\x81"), ("cp1251", b"\x98")]
)
def test_a_foreign_byte_stays_in_its_cell(tmp_path: Path, encoding: str, bad: bytes) -> None:
    text = "who;age;chol;sex;outcome\n1;1;§;f;no\n2;1;1;f;yes\n§;1;1;f;no\n§;1;1;f;no\n"
    mark = "§".encode(encoding) if encoding != "cp1251" else b"\xa7"
    data = text.encode(encoding).replace(mark, bad)
    try:
        got = read(tmp_path, data, encoding=encoding)
    except (DataError, UnicodeDecodeError):
        pytest.fail("a byte of one record stops the whole table")
    assert got.positions.tolist() == [0, 1, 2]
    assert got.summary.unreadable == {"age": 0, "chol": 1, "sex": 0}
    assert got.summary.left_out["repeated id"] == 1


@pytest.mark.parametrize("damage", [b"", b"\r", b"\r\n", b"1;2\n1;2\n"])
def test_a_file_in_utf_16_is_refused_whatever_its_records(tmp_path: Path, damage: bytes) -> None:
    """One byte too many in a record would be in all that follow."""
    text = f"who,{SECRET}\n1,2\n".encode("utf-16")
    with pytest.raises(DataError, match=r"the table is in UTF-16, .* save it as CSV"):
        read(tmp_path, text[:20] + damage + text[20:])


@settings(max_examples=150)
@given(
    st.sampled_from(["PatNr;Geburtsdatum;Aufnahme;Cholesterin;Geschlecht;Diagnose", "{};{}", "{}",
                     "PatNr;Geburtsdatum;{};Cholesterin;Geschlecht;Diagnose", "{};{};{};{};{};{}"]),
    st.lists(st.lists(st.sampled_from(["{}", "1,5", "01.03.1980", "1.{}", "{};", '"{}', ""]),
                      min_size=1, max_size=7).map(";".join), max_size=6),
    st.sampled_from(["latin-1", "utf-8"]),
    st.sampled_from(["csv", "parquet"]),
)  # fmt: skip
def test_no_text_of_a_file_is_in_an_error_or_a_warning_of_a_run(
    tmp_path: Path, header: str, rows: list[str], encoding: str, kind: str
) -> None:
    """Headers, too: where a header is missing, the first line is a record."""
    text = "\n".join([header, *rows]).replace("{}", SECRET)
    (tmp_path / "t").write_bytes(text.encode(encoding))
    keys = {**SITE, "format": kind, **({} if kind == "csv" else {"encoding": "utf-8"})}
    where = DataSource.model_validate({**keys, "path": str(tmp_path / "t")})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            data = read_site_data(where, SCHEMA.task, SCHEMA_TEXT)
        except DataError as error:
            shown = f"{error} {error!r}"
            assert error.__cause__ is None
            assert error.__suppress_context__ or error.__context__ is None
        else:
            shown = f"{data!r} {data.summary!r}"
    assert [str(each.message) for each in warned] == []
    for private in (SECRET, "1980", "PatNr", "Geburtsdatum", "Geschlecht", "k.A."):
        assert private not in shown


no_ends = st.text(max_size=8).filter(lambda text: not set(text) & set("\r\n"))


@settings(max_examples=120)
@given(
    st.lists(st.lists(no_ends, min_size=6, max_size=6).map(";".join), min_size=1, max_size=5),
    st.one_of(
        st.lists(no_ends, min_size=6, max_size=6).map(";".join),
        st.sampled_from(["1;30.02.2000;01.01.2000;1e999;W;größer", "\x00" * 9, '"', "9;" * 5]),
    ),
    st.data(),
    st.sampled_from(["latin-1", "cp1252"]),
)
def test_a_messy_line_decides_about_its_own_record_alone(
    tmp_path: Path, table: list[str], other: str, data: st.DataObject, encoding: str
) -> None:
    changed = data.draw(st.integers(0, len(table) - 1))
    swapped = [*table]
    swapped[changed] = other
    keys = {**SITE, "encoding": encoding, "id": ""}
    schema = SCHEMA.model_copy(update={"id": ""})
    header = "PatNr;Geburtsdatum;Aufnahme;Cholesterin;Geschlecht;Diagnose"
    seen = []
    for rows in (table, swapped):
        kept = [row for row in rows if row.encode(encoding, "replace").strip()]
        if len(kept) < len(rows):
            return  # a blank line is none, and moves the numbers of the others
        octets = "\n".join([header, *rows]).encode(encoding, "replace")
        got = read(tmp_path, octets, schema, **keys)
        assert np.isfinite(got.records.features).all()
        assert (np.abs(got.records.features) <= 1).all()
        seen.append(
            {
                row: (got.records.features[at].tobytes(), int(got.records.targets[at]))
                for at, row in enumerate(got.positions.tolist())
                if row != changed
            }
        )
    assert seen[0] == seen[1]
