"""``profile check`` of a site's data: what makes it useless is an error, and shows the texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data import site_check
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.data.test_site_data import SECRET, TABLE, TEXT, WITH_ID, source, write_csv
from tests.test_architecture import imported, sources


def check_site_data(*args: Any) -> list[str]:
    """Return the lines of the check but those that it always has."""
    lines = site_check.check_site_data(*args)
    return [line for line in lines if not line.startswith(("lost: ", "label '"))]


def test_the_check_tells_the_site_what_it_must_know(tmp_path: Path) -> None:
    rows = [
        *(f"p{i},{i},1" for i in range(8)),
        *("p1,3,0", ",3,1", f"q,{SECRET},1", "r,5000,0", "s,?,1", f"t,1,{SECRET}", "ragged"),
    ]
    path = write_csv(tmp_path / "t.csv", rows, "who,a,y")
    lines = check_site_data(source(path, "csv", unit="who"), TABLE, WITH_ID, 20)
    text = "\n".join(lines)
    assert "records: 15 found, 11 for training" in text
    assert "column 'a': 1 of 14 cells are missing and filled" in text
    assert f"column 'a': 1 of 13 cells that hold something cannot be read: '{SECRET}' 1" in text
    assert "column 'a': 1 of 13 numbers lie outside the schema's bounds and are clipped" in text
    assert "1 of 15 records cannot be cut into the cells of the header and are lost" in text
    assert f"column 'y': 1 of 14 cells that hold something cannot be read: '{SECRET}' 1" in text
    assert sum(line.startswith("error:") for line in lines) == 1
    assert sum(line.startswith("warning:") for line in lines) == 6
    assert "error: 1 records have no id and are left out" in text
    assert "fewer than the 20 declared" in text


def test_the_check_counts_what_is_changed_a_line_a_column(tmp_path: Path) -> None:
    """A column that is only filled or only clipped has a line; a label has no filled cells."""
    schema = """
[label]
column = "y"
bounds = [0, 1]
[[columns]]
name = "filled"
type = "number"
bounds = [0, 9]
[[columns]]
name = "clipped"
type = "number"
bounds = [0, 9]
[[columns]]
name = "kind"
type = "category"
categories = ["a", "b"]
[[columns]]
name = "good"
type = "number"
bounds = [0, 9]
"""
    rows = [",1,a,1,0", "x,10,b,2,1", "3,11,c,3,2", "4,12,,4,-1", "5,5,,5,1"]
    path = write_csv(tmp_path / "t.csv", rows, "filled,clipped,kind,good,y")
    task = Schema.parse(schema).task
    lines = check_site_data(source(path, "csv", 1 - 2**-53), task, schema, 5)
    assert lines[0] == "records: 5 found, 0 for training, 5 held out for the site's own test"
    assert [line.split("'")[1] for line in lines[1:3]] == ["filled", "kind"]
    assert all("cells that hold something cannot be read" in line for line in lines[1:3])
    assert lines[3].startswith("warning: column 'clipped': 3 of 5 numbers lie outside")
    assert lines[4:7] == [
        "column 'filled': 1 of 5 cells are missing and filled",
        "column 'kind': 2 of 5 cells are missing and filled",
        "column 'y': 2 clipped to the bounds",
    ]
    assert "no record is left for training" in lines[7]
    assert all(line.startswith("warning:") for line in lines[7:])


@pytest.mark.parametrize(("used", "words"), [(8, "fewer"), (9, ""), (11, ""), (12, "more")])
def test_a_tenth_more_or_fewer_than_declared_is_no_warning(
    tmp_path: Path, used: int, words: str
) -> None:
    path = write_csv(tmp_path / "t.csv", ["2,1", *["1,0"] * (used - 1)])
    first, *found = check_site_data(source(path, "csv"), TABLE, TEXT, 10)
    assert first == f"records: {used} found, {used} for training"
    assert len(found) == bool(words)
    for line in found:
        assert line.startswith(
            f"warning: {used} records for training, {words} than the 10 declared"
        )


def test_the_check_compares_with_the_declared_records(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [f"{i // 2},{i % 2}" for i in range(100)])
    where = source(path, "csv")
    assert check_site_data(where, TABLE, TEXT, 100) == ["records: 100 found, 100 for training"]
    for close in (91, 110):
        assert len(check_site_data(where, TABLE, TEXT, close)) == 1
    assert "more than the 90 declared" in check_site_data(where, TABLE, TEXT, 90)[-1]
    assert "fewer than the 112 declared" in check_site_data(where, TABLE, TEXT, 112)[-1]
    assert "held out" in check_site_data(source(path, "csv", 0.5), TABLE, TEXT, 50)[0]
    empty = write_csv(tmp_path / "t.csv", [])
    line = check_site_data(source(empty, "csv"), TABLE, TEXT, 5)[1]
    assert line.startswith("error: no record can be used")


def test_repeated_ids_are_a_warning_that_says_what_becomes_of_them(tmp_path: Path) -> None:
    """To give each an id of its own would take the protection from the person."""
    path = write_csv(tmp_path / "t.csv", ["p,1,0", "p,2,1", "q,3,1", "q,4,1"], "who,a,y")
    _, _, line = check_site_data(source(path, "csv", unit="who"), TABLE, WITH_ID, 2)
    assert line.startswith("warning: 2 records have a repeated id: training reads the first")
    assert "'hdpfl-site evaluate'" in line
    assert "by 'data.row', several by 'data.records-per-unit'" in line


def test_the_row_used_of_an_id_and_rows_without_a_date_are_told(tmp_path: Path) -> None:
    rows = ["p,1,0,01.02.2024", "p,2,1,?", "q,3,1,02.01.2024", "q,4,1,13.01.2024"]
    path = write_csv(tmp_path / "t.csv", rows, "who,a,y,seen")
    given = {"format": "csv", "path": str(path), "id": "who", "row": "last by seen"}
    forms = {"columns": {"seen": {"date-formats": ["%d.%m.%Y", "%m.%d.%Y"]}}}
    where = DataSource.model_validate(given | forms)
    told = "\n".join(check_site_data(where, TABLE, WITH_ID, 2))
    assert "training reads the last labelled row by 'seen' of an id alone" in told
    assert "warning: 1 rows have no date in the column of 'data.row'" in told
    assert "warning: column 'seen': 2 of 3 dates are ambiguous" in told
    assert "no column of the run's 'schema'" not in told


SPELLED = [
    *[
        ("7", "007"),
        ("P007", "p7"),
        ("a7", "A7"),
        ("0", "000"),
        ("\u00c41", "A\u03081"),
        ("７", "7"),
    ],
    *[("٧", "7"), ("ﬁ1", "FI1"), ("ß1", "SS1"), ("7\u00a0x", "7 x"), ("P\u200b7", "P7")],
    *[
        ("P\u00ad7", "P7"),
        ("\ufeff7", "7"),
        ("e\u200b\u03011", "\u00e91"),
        ("'7", "7"),
        ("´7", "7"),
    ],
    *[('"=""7"""', "7"), ("“7”", "7"), ("(7)", "7"), ("A7.", "A7"), ("#7", "7"), ("A7.0", "A7")],
    *[('"7,0"', "7"), ('"1,001"', "1001"), ("1.001", "1001"), ("1 001", "1001"), ("1'001", "1001")],
    *[
        ('"1,001.00"', "1001"),
        ("P-7", "P7"),
        ("P 7", "P_7"),
        ("P\u20137", "P/7"),
        ("\u22127", "-7"),
    ],
    *[("1.23E+05", "123456"), ('"1,23E+05"', "123456"), ("1.2346E+05", "123456")],
]


@pytest.mark.parametrize("pair", SPELLED)
def test_a_person_under_two_spellings_is_a_warning(tmp_path: Path, pair: tuple[str, str]) -> None:
    """Nothing but the warning: a run reads both, by the letter."""
    rows = [f"{who},{i},{i % 2}" for i, who in enumerate((*pair, "other1", "other2"))]
    path = write_csv(tmp_path / "t.csv", rows, "who,a,y")
    lines = check_site_data(source(path, "csv", unit="who"), TABLE, WITH_ID, 4)
    text = "\n".join(lines)
    assert lines[0] == "records: 4 found, 4 for training"
    assert "warning: 2 ids look like those of 1 persons" in text
    assert "(records 1 and 2, counted from 1)" in text
    assert "as text" in text
    assert ("warning: 1 ids are in a spreadsheet's" in text) == ("E+" in pair[0])
    assert len(lines) == 2 + ("E+" in pair[0])
    table = pa.table({"who": [name.strip('"').replace('""', '"') for name in pair],
                      "a": [1, 2], "y": [0, 1]})  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet")
    where = source(tmp_path / "t.parquet", "parquet", unit="who")
    assert "2 ids look like" in check_site_data(where, TABLE, WITH_ID, 2)[1]


@pytest.mark.parametrize(
    "ids", ["7 70", "A7 A70", "a b", "1-23 12-3", "1.5 15", "1E5 100000", "A-B AC", "1-2 1-20 2-1",
            "1.24E+05x 123456", "Ä1 A1", "O1 01 l1"]
)  # fmt: skip
def test_different_persons_are_no_warning(tmp_path: Path, ids: str) -> None:
    rows = [f"{who},{i},{i % 2}" for i, who in enumerate(ids.split())]
    path = write_csv(tmp_path / "t.csv", rows, "who,a,y")
    lines = check_site_data(source(path, "csv", unit="who"), TABLE, WITH_ID, len(rows))
    assert len(lines) == 1


def test_ids_of_bytes_that_are_no_text_are_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("who,a,y\nMÄ1,1,0\nM".encode() + b"\xc41,2,1\n\xff,3,1\n\xfe,4,1")
    lines = check_site_data(source(path, "csv", unit="who"), TABLE, WITH_ID, 4)
    assert "2 ids look like those of 1 persons" in lines[1]
    assert len(lines) == 2


def found(path: Path, rows: list[str], header: str, schema: str, **keys: object) -> list[str]:
    """Return errors and warnings about a CSV, but those about the number declared and constants."""
    write_csv(path / "t.csv", rows, header)
    where = DataSource.model_validate({"format": "csv", "path": str(path / "t.csv"), **keys})
    lines = check_site_data(where, Schema.parse(schema).task, schema, len(rows))
    return [line for line in lines if line.startswith(("error:", "warning:"))
            and not re.search("declared|is constant: it|is another:", line)]  # fmt: skip


MIXED = (
    TEXT
    + """
[[columns]]
name = "sex"
type = "category"
categories = [["f", "female"], ["m", "male"]]
"""
)


@pytest.mark.parametrize(("bad", "level"), [(0, ""), (1, "warning"), (19, "warning"), (20, "error"),
                                              (100, "error")])  # fmt: skip
def test_a_fifth_unreadable_is_an_error_with_the_texts(
    tmp_path: Path, bad: int, level: str
) -> None:
    """Of the cells that hold something: 50 more are missing."""
    cells = [SECRET] * bad + ["5"] * (100 - bad) + ["?"] * 50
    rows = [f"{cell},{i % 2},f" for i, cell in enumerate(cells)]
    lines = found(tmp_path, rows, "a,y,sex", MIXED)
    assert [line.partition(":")[0] for line in lines] == [level] * bool(bad)
    for line in lines:
        assert f"column 'a': {bad} of 100 cells" in line
        assert f"'{SECRET}' {bad} times" in line
        assert "[data.columns.a]" in line


def test_a_label_that_cannot_be_read_is_an_error_with_the_texts(tmp_path: Path) -> None:
    rows = [f"{i},{'ja' if i % 2 else 'nein'},f" for i in range(50)]
    first, second = found(tmp_path, rows, "a,y,sex", MIXED)
    assert first.startswith("error: column 'y': 50 of 50")
    assert "'nein' 25 times; 'ja' 25 times" in first
    assert second.startswith("error: no record can be used")
    mapped = {"y": {"values": {"ja": "1", "nein": "0"}}}
    assert found(tmp_path, rows, "a,y,sex", MIXED, columns=mapped) == []
    (line,) = found(tmp_path, [f"{i},,f" for i in range(9)], "a,y,sex", MIXED)
    assert line.startswith("error: no record can be used")
    half = [f"{i},{i % 2 if i < 8 else 'x'},f" for i in range(10)]
    (line,) = found(tmp_path, half, "a,y,sex", MIXED)
    assert line.startswith("error: column 'y': 2 of 10 cells")
    half = [f"{i},{i % 2 if i < 7 else 'x'},f" for i in range(10)]
    (line,) = found(tmp_path, half, "a,y,sex", MIXED)
    assert "column 'y': 3 of 10 cells" in line


def test_texts_are_cut_and_counted_and_the_most_frequent_come_first(tmp_path: Path) -> None:
    rows = [f"{'x' * 50 if i < 9 else f't{i}'},{i % 2},d" for i in range(30)]
    first, second = found(tmp_path, rows, "a,y,sex", MIXED)
    assert f"'{'x' * 40}…' 9 times; 't9' 1 times" in first
    assert "and 12 other texts" in first
    assert "'d' 30 times" in second


def test_dates_that_cannot_be_read_show_the_column_that_is_wrong(tmp_path: Path) -> None:
    columns = {"a": {"name": "born", "to": "age", "reference": "at",
                     "date-formats": ["%d.%m.%Y"]}}  # fmt: skip
    rows = ["1.1.2000,1.1.2020,0"] * 3
    rows += ["2000-1-1,1.1.2020,1", "1.1.2000,gestern,1", "1.1.2021,1.1.2020,1", "k.A.,1.1.2020,1"]
    (line,) = found(tmp_path, rows, "born,at,y", TEXT, columns=columns)
    assert "column 'a': 4 of 7" in line
    assert "'2000-1-1' 1 times; 'k.A.' 1 times; 'gestern' 1 times; " in line
    assert "'(a date after 'reference')' 1 times" in line
    assert found(tmp_path, rows, "born,at,y", TEXT,
                 columns={"a": {**columns["a"], "date-formats": ["%d.%m.%Y", "%Y-%m-%d"]}},
                 missing=["k.A.", "gestern", "1.1.2021"]) == []  # fmt: skip


def test_columns_that_teach_nothing_are_named(tmp_path: Path) -> None:
    rows = [f"?,{i % 2},f" for i in range(10)]
    (line,) = found(tmp_path, rows, "a,y,sex", MIXED)
    assert line.startswith("warning: column 'a' is missing in every record")
    for clipped, is_doubted in ((2, False), (3, True)):
        cells = [5000] * clipped + [5] * (10 - clipped)
        lines = found(tmp_path, [f"{a},{i % 2},f" for i, a in enumerate(cells)], "a,y,sex", MIXED)
        assert len(lines) == 1
        assert ("'data.columns.a.factor'" in lines[0]) == is_doubted
        assert f"'5000' {clipped} times" in lines[0]
    (line,) = found(tmp_path, ["1,1,f", "2,1,m"], "a,y,sex", MIXED)
    assert line.startswith("warning: every label is of the same class")
    (line,) = found(tmp_path, ["1,1,f", "2,0,m"], "a,y,sex", MIXED, columns={"ag": {"name": "x"}})
    assert line == "warning: 'data.columns.ag' is no column of the run's 'schema'"


def test_lines_that_cannot_be_cut_are_named_by_number(tmp_path: Path) -> None:
    rows = [f"1,{i % 2},f" for i in range(8)]
    line, *_ = found(tmp_path, [f"{SECRET},1,f,", *rows, '"', "1"], "a,y,sex", MIXED)
    assert "3 of 11 records cannot be cut into the cells of the header and are lost" in line
    assert "1 with a delimiter outside of quotes, 1 with quotes that do not pair" in line
    assert "by label: 0 of 4 with '0', 1 of 5 with '1', 2 of unknown label" in line
    assert "(records 1, 10, 11, counted from 1)" in line
    assert SECRET not in line


def test_a_type_of_parquet_without_texts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [[1], [2]], "y": [0, 1]}), path)
    lines = check_site_data(source(path, "parquet"), TABLE, TEXT, 2)
    (line,) = [line for line in lines if line.startswith("error")]
    assert "neither number nor text; dates need 'to')' 2 times" in line


def test_arrays_without_a_label_are_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.ones((3, 2)), y=np.array([7, 8, 9]))
    task = Task.classification((2,), 3)
    lines = check_site_data(source(tmp_path / "d.npz", "npz"), task, "", 3)
    assert any(line.startswith("error: no record can be used") for line in lines)


def test_no_run_imports_what_shows_texts_of_records() -> None:
    """A run that could list unreadable cells would bring them into a log that may leave."""
    inner = {name for name in sources() if name.startswith("hdpfl_flower.data.screen.")}
    shows = {"hdpfl_flower.data.site_check", "hdpfl_flower.data.schema_draft", *inner}
    users = {
        module
        for module, path in sources().items()
        if shows & {*imported(path.read_text(), frozenset(sources()))}
    }
    # 'compare' shows them of tables at hand, before its runs; no site's run imports it.
    users -= {"client_app.commands.plan", "server_app.commands.compare"}
    # 'withdraw' looks for the ids given, and shows their number.
    users -= {"client_app.commands.ledger"}
    assert users <= {"client_app.commands.profile", "client_app.commands.schema", *shows}
    assert "client_app.commands.profile" in users
