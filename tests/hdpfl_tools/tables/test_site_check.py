"""``profile check`` of a site's data: what makes it useless is an error, and shows the texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.schema import Schema
from hdpfl_tools.tables import site_check
from tests.hdpfl_tools.tables.test_site_data import SECRET, TABLE, TEXT, WITH_ID, source, write_csv
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
    assert "column 'a': 1 of 11 cells are missing and filled" in text
    assert f"column 'a': 1 of 13 cells that hold something cannot be read: '{SECRET}' 1" in text
    assert "column 'a': 1 of 10 numbers lie outside the schema's bounds and are clipped" in text
    assert "1 of 15 records cannot be cut into the cells of the header and are lost" in text
    assert f"column 'y': 1 of 14 cells that hold something cannot be read: '{SECRET}' 1" in text
    assert sum(line.startswith("error:") for line in lines) == 1
    assert sum(line.startswith("warning:") for line in lines) == 6
    assert "error: 1 records have no id and are left out" in text
    assert "fewer than the 20 declared" in text


def test_the_check_compares_with_the_declared_records(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [f"{20 * (i // 2)},{i % 2}" for i in range(100)])
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


@pytest.mark.parametrize(
    ("more", "times"), [("", 1), ("\ntypical = [50, 10]", 0)], ids=["bounds", "typical"]
)
def test_a_column_that_fills_little_of_its_bounds_is_told(
    tmp_path: Path, more: str, times: int
) -> None:
    """Numbers from 0 to 49 in bounds of 0 to 1,000: nine of ten lie in 4.5 % of them."""
    path = write_csv(tmp_path / "t.csv", [f"{i // 2},{i % 2}" for i in range(100)])
    text = TEXT.replace("bounds = [0, 1000]", f"bounds = [0, 1000]{more}")
    lines = check_site_data(source(path, "csv"), TABLE, text, 100)
    assert len([line for line in lines if "'a': nine of ten records lie in 4.5 %" in line]) == times


def test_the_row_used_of_an_id_and_rows_without_a_date_are_told(tmp_path: Path) -> None:
    rows = ["p,1,0,01.02.2024", "p,2,1,?", "q,3,1,02.01.2024", "q,4,1,13.01.2024"]
    path = write_csv(tmp_path / "t.csv", rows, "who,a,y,seen")
    given = {"format": "csv", "path": str(path), "id": "who", "row": "last by seen"}
    forms = {"columns": {"seen": {"date-formats": ["%d.%m.%Y", "%m.%d.%Y"]}}}
    where = DataSource.model_validate(given | forms)
    told = "\n".join(check_site_data(where, TABLE, WITH_ID, 2))
    assert "training reads only the last labelled row by 'seen' of an id" in told
    assert "warning: 1 rows have no date in the column of 'data.row'" in told
    assert "warning: column 'seen': 2 of 3 dates are ambiguous" in told
    assert "not a column of the run's 'schema'" not in told


SPELLED = [
    tuple(pair.split("|"))
    for pairs in (
        "7|007;P007|p7;a7|A7;0|000;\u00c41|A\u03081;７|7;٧|7;ﬁ1|FI1;ß1|SS1;7\u00a0x|7 x",
        "P\u00ad7|P7;\ufeff7|7;e\u200b\u03011|\u00e91;'7|7;´7|7;“7”|7;(7)|7;A7.|A7;#7|7;A7.0|A7",
        '"=""7"""|7;"7,0"|7;"1,001"|1001;1.001|1001;1 001|1001;1\'001|1001;"1,001.00"|1001',
        "P\u200b7|P7;P-7|P7;P 7|P_7;P\u20137|P/7;\u22127|-7",
        '1.23E+05|123456;"1,23E+05"|123456;1.2346E+05|123456',
    )
    for pair in pairs.split(";")
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
    table = pa.table(
        {"who": [name.strip('"').replace('""', '"') for name in pair], "a": [1, 2], "y": [0, 1]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    where = source(tmp_path / "t.parquet", "parquet", unit="who")
    assert "2 ids look like" in check_site_data(where, TABLE, WITH_ID, 2)[1]


def found(path: Path, rows: list[str], header: str, schema: str, **keys: object) -> list[str]:
    """Return errors and warnings about a CSV, but those about the number declared and constants."""
    write_csv(path / "t.csv", rows, header)
    where = DataSource.model_validate({"format": "csv", "path": str(path / "t.csv"), **keys})
    lines = check_site_data(where, Schema.parse(schema).task, schema, len(rows))
    return [
        line
        for line in lines
        if line.startswith(("error:", "warning:"))
        and not re.search("declared|is constant: a|is different:", line)
    ]


MIXED = (
    TEXT
    + """
[[columns]]
name = "sex"
type = "category"
categories = [["f", "female"], ["m", "male"]]
"""
)


@pytest.mark.parametrize(
    ("bad", "level"), [(0, ""), (1, "warning"), (19, "warning"), (20, "error"), (100, "error")]
)
def test_a_fifth_unreadable_is_an_error(tmp_path: Path, bad: int, level: str) -> None:
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


def test_no_run_imports_what_shows_texts_of_records() -> None:
    """A run that could list unreadable cells would bring them into a log that may leave."""
    inner = {name for name in sources() if name.startswith("hdpfl_tools.tables.screen.")}
    shows = {"hdpfl_tools.tables.site_check", "hdpfl_tools.tables.schema_draft", *inner}
    users = {
        module
        for module, path in sources().items()
        if shows & {*imported(path.read_text(), frozenset(sources()))}
    }
    # 'compare' shows them of tables at hand, before its runs; no site's run imports it.
    users -= {"hdpfl_tools.site.commands.plan", "hdpfl_tools.coordinator.commands.compare"}
    # 'withdraw' looks for the ids given, and shows their number.
    users -= {"hdpfl_tools.site.commands.ledger"}
    assert users <= {
        "hdpfl_tools.site.commands.profile",
        "hdpfl_tools.site.commands.schema",
        *shows,
    }
    assert "hdpfl_tools.site.commands.profile" in users
