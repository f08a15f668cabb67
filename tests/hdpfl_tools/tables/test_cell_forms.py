"""Cells that hold more than a number are read as the site says, or named with a remedy."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from hdpfl_flower.config.data_source import DataSource, OwnColumn
from hdpfl_flower.data.columns import days_in
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.data.values import number_in, plain
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables import table_records
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.schema_draft import Draft, draft_schema
from hdpfl_tools.tables.site_check import check_site_data
from hdpfl_tools.tables.table_records import read_table

SCHEMA = """
[label]
column = "y"
classes = [["0"], ["1"]]
[[columns]]
name = "v"
type = "number"
bounds = [-1000, 1000]
[[columns]]
name = "w"
type = "number"
bounds = [0, 1000]
"""


def written(folder: Path, cells: list[str], **more: list[str]) -> Path:
    """Write a table whose column ``v`` has these cells."""
    names = [*more, "v", "w", "y"]
    columns = [*more.values(), cells, [str(i) for i in range(len(cells))]]
    rows = zip(*columns, (str(i % 2) for i in range(len(cells))), strict=True)
    path = folder / "t.csv"
    path.write_text("\n".join([";".join(names), *map(";".join, rows)]) + "\n")
    return path


def numbers(path: Path, **own: Any) -> list[float]:
    """Return the numbers of column ``v``, NaN where one cannot be read."""
    source = DataSource.model_validate({"path": str(path), "columns": {"v": own}})
    table, schema = OwnTable.of(source), Schema.parse(SCHEMA)
    raw = table_records.load_rows(*source.place, table.all_wanted(schema), schema, table)
    return table.read(raw, "v", (), ())[0].numbers.tolist()


def drafted(path: Path, **options: str) -> tuple[Draft, dict[str, Any]]:
    draft = draft_schema(path, "y", **options)
    return draft, tomllib.loads(draft.profile)["data"]


def checked(path: Path, **keys: Any) -> str:
    source = DataSource.model_validate({"path": str(path), **keys})
    schema = Schema.parse(SCHEMA)
    return "\n".join(check_site_data(source, schema.task, SCHEMA, 40))


def test_each_unit_has_its_factor(tmp_path: Path) -> None:
    path = written(tmp_path, ["5 mg/l", "0.5 mg/dl", "5mg/l", "7", "0.5 mg/dL", "x"] * 8)
    read = numbers(path, units={"mg/l": 1.0, "mg/dl": 10.0})
    np.testing.assert_equal(read[:6], [5, 5, 5, 7, np.nan, np.nan])
    told = checked(path, columns={"v": {"strip": ["mg/l", "mg/dl"]}})
    assert "error: column 'v': 'strip' removes 2 units: 'mg/l' 16 (median 5), 'mg/dl' 8" in told
    draft, data = drafted(path)
    assert "3 units: 'mg/l' 16 (median 5)" in "\n".join(draft.notes)
    assert data["columns"]["v"] == {}


def test_one_unit_alone_is_stripped(tmp_path: Path) -> None:
    path = written(tmp_path, ["5 mg/l", "6 mg/l", "7mg/l"] * 10)
    assert drafted(path)[1]["columns"]["v"] == {"strip": ["mg/l"]}
    assert numbers(path, strip=["mg/l"])[:3] == [5, 6, 7]
    some = written(tmp_path, ["5 mg/l", "6", "7mg/l"] * 10)
    assert "only some cells have a unit" in "\n".join(drafted(some)[0].notes)


def test_a_minus_is_no_unit(tmp_path: Path) -> None:
    path = written(tmp_path, ["5.2-", "3", "-4", "1-", "2\u2212"] * 8)
    assert drafted(path)[1]["columns"]["v"] == {"trailing-minus": True}
    assert numbers(path, **{"trailing-minus": True})[:5] == [-5.2, 3, -4, -1, -2]
    assert "24 are a minus after the number ('trailing-minus = true'" in checked(path)
    for marks in (["-"], ["mg", "+"], ["\u2212"], ["5"], ["("], ["- "]):
        for key in ({"strip": marks}, {"units": dict.fromkeys(marks, 1.0)}):
            with pytest.raises(ValidationError, match="a minus is no unit"):
                OwnColumn.model_validate(key)
    with pytest.raises(ValidationError, match="factor of 0"):
        OwnColumn.model_validate({"units": {"mg": 0.0}})


def test_ages_with_letters_are_years(tmp_path: Path) -> None:
    path = written(tmp_path, ["011M", "031Y", "002W", "080Y"] * 10)
    units = drafted(path)[1]["columns"]["v"]["units"]
    assert {*units} == {"M", "Y", "W"}
    np.testing.assert_allclose(numbers(path, units=units)[:3], [11 / 12, 31, 14 / 365.25])


@pytest.mark.parametrize(
    ("cells", "reads"),
    [
        (["2,090", "1,234", "880"], "'2,090' is 2.09 or 2090; choose thousands"),
        (["2.090", "1.234", "880"], "'2.090' is 2.09 or 2090; choose"),
        (["2,090", "1,234", "10,5"], ""),
        (["2,090", "1,234,567", "880"], ""),
        (["0,090", "0,234", "880"], ""),
        (["2 090", "1 234", "880"], ""),
        (["1.5", "12.25", "880"], ""),
    ],
)
def test_a_number_of_two_notations_is_left_to_the_site(
    tmp_path: Path, cells: list[str], reads: str
) -> None:
    draft, data = drafted(written(tmp_path, cells * 10))
    told = "\n".join(draft.notes)
    assert reads in told and ("ambiguous" in told) == bool(reads)
    path = tmp_path / "t.csv"
    assert ("error: ambiguous" in checked(path, delimiter=";")) == bool(reads)
    assert "ambiguous" not in checked(path, delimiter=";", decimal=".")
    assert not reads or not {"decimal", "thousands"} & {*data}


def test_marks_of_databases_are_offered(tmp_path: Path) -> None:
    marks = ["\\N", "(null)", "[NULL]", "<NA>", "#DIV/0!", "NaT", "NIL", "#VALUE!", "N.A."]
    path = written(tmp_path, [*marks, *(f"{i}.5" for i in range(40))])
    draft, data = drafted(path)
    assert {*data["missing"]} == {*marks}
    assert np.isfinite(numbers(path)).sum() == 40
    assert "number, 40 of 49 hold something" in "\n".join(draft.notes)


@pytest.mark.parametrize(
    ("cells", "remedy"),
    [
        (["5-10", "10 - 20", "3 to 4"], "a range"),
        (["2,090", "1,234,567", "12,345.5"], "a number with a mark before three digits"),
        (["1:80", "1:160", "1 : 20"], "a ratio, a titre or a time"),
        (["120/80", "38+4", "110 / 70 mmHg"], "a fraction, or two numbers"),
        (["5\u00b11", "2 h 30 min", "7\\9"], "a fraction, or two numbers"),
        (["ca. 5", "~5", "$ -2.5"], "a number behind a mark"),
        (['="5"', "=5+3", "=A1"], "a formula"),
        (["2019-UN-UN", "UNK-02-03", "2020-05-00"], "a date of which a part is unknown"),
        (["(5.2)", "(3)", "(1,5)"], "a negative number in parentheses"),
        (["<5", ">= 7", "\u2264 3"], "a limit of measurement"),
    ],
)
def test_a_form_that_is_no_number_is_named_with_its_remedy(
    tmp_path: Path, cells: list[str], remedy: str
) -> None:
    assert f"30 are {remedy}" in checked(written(tmp_path, cells * 10))


@pytest.mark.parametrize("second", ["/80", "/80 mmHg", ":40", "\u00b12", "h 30m"])
def test_a_second_number_is_no_unit(tmp_path: Path, second: str) -> None:
    frequent = written(tmp_path, [f"{i}{second}" for i in range(60)])
    draft, data = drafted(frequent)
    assert "v" not in data.get("columns", {}), data
    assert "'v': left out, 60 different texts: 60 are a" in "\n".join(draft.notes)
    for unit in ("x10^3", "mg/24h", "mL/min/1.73m2", "%", "\u00b0C"):
        draft, data = drafted(written(tmp_path, [f"{i} {unit}" for i in range(60)]))
        assert data["columns"]["v"] == {"strip": [unit]}


@pytest.mark.parametrize("form", ["%Y%m%d", "%d%m%Y", "%y%m%d", "%Y%m%d%H%M", "%Y%m%d %H:%M"])
def test_joined_parts_of_a_date_have_all_their_digits(form: str) -> None:
    day = datetime.datetime(2022, 11, 12, 10, 30)
    whole = day.strftime(form)
    assert days_in(whole.encode(), (form,), 1950) == (day.date() - datetime.date(1970, 1, 1)).days
    short = [whole[:place] + whole[place + 1 :] for place in range(8 if "%Y" in form else 6)]
    assert np.isnan([days_in(text.encode(), (form,), 1950) for text in short]).all()


def test_codes_of_the_icd_are_offered_by_chapter(tmp_path: Path) -> None:
    codes = [f"{letter}{number:02}.{number % 10}" for letter in "IJE" for number in range(20)]
    path = written(tmp_path, [str(i) for i in range(60)], icd=codes)
    assert "ICD codes, by chapter: I 20, J 20, E 20" in "\n".join(drafted(path)[0].notes)


def test_digits_of_other_scripts_are_read() -> None:
    for text in ("\u0663\u0668.\u0665", "\uff13\uff18.\uff15", "\u0969\u096e.\u096b"):
        assert number_in(plain(text).encode()) == 38.5
    assert plain("x\u00b2") == "x\u00b2"  # a superscript is no decimal digit


def test_dates_of_lower_precision_are_the_middle(tmp_path: Path) -> None:
    forms = ("%Y-%m-%d", "%Y-%m", "%Y")
    expected = [
        np.datetime64(day).astype(int) for day in ("1970-05-03", "1970-05-15", "1970-07-01")
    ]
    assert [days_in(text, forms) for text in (b"1970-05-03", b"1970-05", b"1970")] == expected
    path = written(tmp_path, ["1970-05-03", "1970-05", "1970"] * 10)
    assert drafted(path)[1]["columns"]["v"]["date-formats"] == [*forms]
    years = written(tmp_path, [str(1900 + i) for i in range(60)])
    assert "date-formats" not in drafted(years)[0].profile  # a year alone is a number


def test_a_column_that_a_site_lacks_is_filled_and_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("w,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    own: dict[str, Any] = {"columns": {"v": {"absent": True}}}
    with pytest.raises(DataError, match="set absent = true there"):
        checked(path)
    assert "this site does not have it ('absent'), so it is filled in all 40 records" in checked(
        path, **own
    )
    site_table = OwnTable.of(DataSource.model_validate({"path": str(path), **own}))
    read = read_table(path, "csv", Schema.parse(SCHEMA), site_table)
    assert (read.records.features[:, 0] == 0).all() and read.summary.filled["v"] == 40
    with pytest.raises(DataError, match="is set for the label or the id"):
        checked(path, columns={"y": {"absent": True}})
    with pytest.raises(ValidationError, match="excludes all other keys"):
        OwnColumn.model_validate({"absent": True, "factor": 2.0})


@pytest.mark.parametrize("kind", ["twice", "numbered", "visits", "unlike"])
def test_rows_of_one_person_are_named_where_no_id_is(tmp_path: Path, kind: str) -> None:
    draws = np.random.default_rng(4)
    persons = [(str(50 + p), str(draws.integers(2)), f"{draws.normal():.3f}") for p in range(40)]
    visits = 1 if kind == "unlike" else 3 if kind == "visits" else 2
    rows = [person for person in persons for _ in range(visits)]
    more = {"age": [row[0] for row in rows], "sex": [row[1] for row in rows]}
    person = [f"p{i // visits}" for i in range(len(rows))]
    cells = [row[2] for row in rows]
    if kind == "visits":
        more["person"] = person
        cells = [f"{draws.normal():.3f}" for _ in rows]
    if kind == "numbered":
        more["n"] = [str(i) for i in range(len(rows))]
    path = tmp_path / "t.csv"
    names = [*more, "v", "y"]
    columns = [*more.values(), cells, [row[1] for row in rows]]
    path.write_text("\n".join([",".join(names), *map(",".join, zip(*columns, strict=True))]))
    schema = SCHEMA.partition('[[columns]]\nname = "w"')[0]
    source = DataSource.model_validate({"path": str(path)})
    told = "\n".join(check_site_data(source, Schema.parse(schema).task, schema, 40))
    expected = {
        "twice": "40 of 80 rows occur more than once: was",
        "numbered": "rows occur more than once, except for the running number in 'n'",
        "visits": "looks like the id of a person",
        "unlike": "",
    }[kind]
    assert expected in told
    assert ("rows occur more than once" in told, "looks like" in told) == (
        kind in ("twice", "numbered"), kind == "visits"
    )  # fmt: skip


def test_an_id_of_many_rows_is_doubted(tmp_path: Path) -> None:
    ids = ["0" if i % 3 == 0 else f"p{i}" for i in range(60)]
    path = written(tmp_path, [str(i) for i in range(60)], person=ids)
    schema = 'id = "person"\n' + SCHEMA
    source = DataSource.model_validate({"path": str(path), "id": "person"})
    told = "\n".join(check_site_data(source, Schema.parse(schema).task, schema, 40))
    assert "one id, '0', has 20 of 60 rows: is it a placeholder" in told
    assert "data.columns.person.missing" in told
    path = written(tmp_path, [str(i) for i in range(60)], person=[f"p{i // 3}" for i in range(60)])
    assert "placeholder" not in "\n".join(
        check_site_data(source, Schema.parse(schema).task, schema, 40)
    )


def test_a_schema_too_wide_for_the_declared_records_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the declared number: no refusal may show the true one."""
    schema = Schema.parse(SCHEMA)
    monkeypatch.setattr(table_records, "MOST_ENCODED", 60 * 2 * 4)
    for rows in (30, 60, 90):
        source = DataSource.model_validate({"path": str(written(tmp_path, ["1"] * rows))})
        assert check_site_data(source, schema.task, SCHEMA, 60)[0].startswith(f"records: {rows} ")
        with pytest.raises(DataError, match="each category takes a number in each record"):
            check_site_data(source, schema.task, SCHEMA, 61)
