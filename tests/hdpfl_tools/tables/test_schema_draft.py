"""A drafted schema proposes types, and holds nothing of a record."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.placeholders import TO_CHOOSE
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.schema_draft import Draft, draft_schema

SECRET = "PATIENT-123"
HEADER = "PatNr;Name;geboren;Aufnahme;Sex;Chol;Ferritin;OP;NYHA;leer"


def messy(seed: int, rows: int = 60) -> list[str]:
    """Return records of a German export; every seed has other values of the same kinds."""
    draw = random.Random(seed)
    words = [f"w{draw.randrange(10**6)}" for _ in range(3)]
    codes = draw.sample(range(100), 4)
    lines = []
    for i in range(rows):
        number = f"{draw.uniform(1, 9):.2f}".replace(".", ",")
        large = f"{draw.uniform(1, 9):.3f},{draw.randrange(10)}"
        day = f"{draw.randrange(13, 29)}.{draw.randrange(1, 13):02d}.{draw.randrange(1930, 2000)}"
        lines.append(
            f"{seed * 1000 + i};Müller{draw.random()};{day};{day} 08:{draw.randrange(10, 60)};"
            f"{words[i % 3]};{number if i % 7 else 'k.A.'};{large};{words[i % 2]};{codes[i % 4]};"
        )
    return lines


def drafted(path: Path, lines: list[str], header: str = HEADER, **options: str) -> Draft:
    path = path / "t.csv"
    path.write_bytes("\r\n".join([header, *lines]).encode("cp1252", "replace"))
    return draft_schema(path, **options)


def test_a_messy_export_is_proposed_with_types_and_without_values(tmp_path: Path) -> None:
    made = drafted(tmp_path, messy(1), label="OP", unit="PatNr")
    data = tomllib.loads(made.text)
    assert data["id"] == "PatNr"
    assert data["label"] == {"column": "OP", "classes": [[TO_CHOOSE], [TO_CHOOSE]]}
    kinds = {column["name"]: column["type"] for column in data["columns"]}
    assert kinds == {"geboren": "number", "Aufnahme": "number", "Sex": "category",
                     "Chol": "number", "Ferritin": "number", "NYHA": "category"}  # fmt: skip
    for column in data["columns"]:
        chosen = column["bounds"] if column["type"] == "number" else column["categories"]
        assert {*chosen} == {TO_CHOOSE}
    with pytest.raises(DataError, match=r"'label\.classes', 'columns\.geboren\.bounds'"):
        Schema.parse(made.text)
    profile = tomllib.loads(made.profile)["data"]
    assert profile.pop("path").endswith("t.csv")
    columns = profile["columns"]
    assert {**profile, "columns": 0} == {
        "id": "PatNr", "encoding": "cp1252", "delimiter": ";", "decimal": ",",
        "thousands": ".", "missing": ["k.A."], "columns": 0,
    }  # fmt: skip
    assert columns["geboren"]["date-formats"] == ["%d.%m.%Y", "%d.%m.%Y %H:%M"]
    DataSource.model_validate({**profile, "path": "t.csv", "columns": columns})
    notes = "\n".join(made.notes)
    assert "60 records read" in notes
    assert "'Name': left out, 60 different texts" in notes
    assert "'leer': left out, because every cell is missing" in notes
    assert [repr(made), f"{made}"] == ["Draft(<private>)"] * 2


@pytest.mark.parametrize("label", ["OP", "Chol", ""])
def test_the_draft_does_not_depend_on_the_values(tmp_path: Path, label: str) -> None:
    """Tables of the same header and kinds give the same bytes: no statistic is in them."""
    first, *others = (
        drafted(tmp_path, messy(seed, rows), label=label).text
        for seed, rows in ((1, 60), (2, 80), (77, 61), (4096, 200))
    )
    assert others == [first] * 3


cells = st.text(st.characters(exclude_characters='\r\n;"', codec="cp1252"), max_size=6)


@settings(max_examples=40, report_multiple_bugs=False)
@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=30), st.data())
def test_no_text_in_the_draft(tmp_path: Path, rows: list[list[str]], data: st.DataObject) -> None:
    """Whatever is in the cells: each is marked with a text that no schema of ours has."""
    mark = data.draw(st.sampled_from(["§§{}", "{}§§", "{}"]))
    lines = [";".join(mark.format(cell) for cell in row) for row in rows]
    assume(any(line.strip() for line in lines))
    try:
        text = drafted(tmp_path, lines, header="a;b;c").text
    except DataError as error:
        text = str(error)
    for line in ("", *text.splitlines()):
        assert "§" not in line
    empty = drafted(tmp_path, ["x;;"], header="a;b;c").text
    known = {*empty.split(), "[[columns]]", '"a"', '"b"', '"c"', '"number"', '"category"', "bounds",
             "categories", "type", "name", "or", "days:", "dates", "become", "them", "by", "each",
             "site's", "years", "low,", "high;", "which", "unit?", "a", "list", "in", "it:",
             "synonyms", "=", "#", f'["{TO_CHOOSE}",', f'"{TO_CHOOSE}"]', f'["{TO_CHOOSE}"]',
             "profile"}  # fmt: skip
    assert {*text.split()} <= known


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the table is empty"),
        (b"one\n1\n", "no known delimiter"),
        (b"a,b\n", "no record that can be cut"),
        (b"a,b\n1,2,3\n", "no record that can be cut"),
        (f"{SECRET},47.1\nb,2\n".encode(), "cell 2 of the first line is a number or a date"),
        (f"{SECRET};47,1\nb;2\n".encode(), "cell 2 of the first line is a number"),
        (f"{SECRET},1.3.1980\nb,2\n".encode(), "cell 2 of the first line is a number or a date"),
        (f"{SECRET},\nb,2\n".encode(), "cell 2 of the first line is empty"),
        (f"{SECRET},a\x07\nb,2\n".encode(), "cell 2 of the first line is empty or no plain"),
        (f"{SECRET},{SECRET}\nb,2\n".encode(), "cell 1 of the first line names a column twice"),
        (b"PK\x03\x04" + SECRET.encode(), "zip archive"),
    ],
)
def test_what_is_no_table_with_a_header_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(DataError, match=words) as caught:
        draft_schema(tmp_path / "t.csv")
    assert SECRET not in str(caught.value)
    with pytest.raises(DataError, match="is not there"):
        draft_schema(tmp_path / "other.csv")


def test_columns_that_options_name_must_be_there(tmp_path: Path) -> None:
    for options, words in (
        ({"label": "x"}, "no column 'x', which --label names"),
        ({"unit": "x"}, "no column 'x', which --id names"),
        ({"unit": "OP", "label": "OP"}, "name the same column"),
    ):
        with pytest.raises(DataError, match=words):
            drafted(tmp_path, messy(1), **options)


BASE = [f"{i:06},{30 + i % 50},{'FM'[i % 2]},{180 + i % 37},{i % 3 % 2}" for i in range(60)]
NAMES = "patient,age,sex,chol,dx"


def notes_of(path: Path, text: str, label: str = "dx") -> tuple[dict[str, object], str, str]:
    """Return the drafted schema, the notes and the profile of a table."""
    (path / "t.csv").write_text(text, newline="")
    made = draft_schema(path / "t.csv", label)
    return tomllib.loads(made.text), "\n".join(made.notes), made.profile


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'"",{NAMES}\n' + "\n".join(f'"{i}",{row}' for i, row in enumerate(BASE)), "cell 1 of th"),
        (f",,{NAMES}\n" + "\n".join(f"{i},{i},{row}" for i, row in enumerate(BASE)), "cell 2 of"),
        (f"{NAMES},\n" + "\n".join(f"{row}," for row in BASE), "cell 6 of the header is empty"),
        (f"{NAMES},,\n" + "\n".join(BASE), "cell 7 of the header is empty"),
        (f"{NAMES},x,x\n" + "\n".join(f"{row},1,2" for row in BASE), "more than one column has th"),
        ("sep=;\n" + "\n".join([NAMES, *BASE]).replace(",", ";"), "60 records read"),
        ("Ward 3, 2024\n\n" + "\n".join([NAMES, *BASE]), "1 lines before the header are skipped"),
        ("Report,,,,\n" + "\n".join([NAMES, *BASE]), "1 lines before the header are skipped"),
        ("Report,ward 7,,,\n" + "\n".join([NAMES, *BASE]), "1 lines before the header are skipped"),
        (f"{NAMES.replace('chol', 'chol' + chr(160))}\n" + "\n".join(BASE), "other blanks, quotes"),
    ],
)
def test_a_draft_is_no_stricter_than_the_reader(tmp_path: Path, text: str, words: str) -> None:
    data, notes, _ = notes_of(tmp_path, text)
    assert words in notes
    assert "lost: 0 of 60 records" in notes
    assert [each["name"] for each in data["columns"]] == ["age", "sex", "chol"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cells", "words", "lines"),
    [
        (["<3", "4.5", "7"], "with marks: '<3' 20", 'below-limit = "half"'),
        (["4.5 mg/l", "7 mg/l", "8 mg/l"], "'8 mg/l' 20", 'strip = ["mg/l"]'),
        (["-99", "4.5", "7.25", "3", "1", "2", "8", "9.5", "6", "5", "4", "0"],
         "-99 (5 times) may be codes of a missing value", ""),
        (["999", "34.5", "37", "33", "41", "52", "48", "9", "96", "55", "74", "60"],
         "999 (5 times), 9 (5 times) may be codes of a missing value", ""),
        (["0", "1", "9"], "9 (20 times) may be codes of a missing value", ""),
        (["16-FEB-20", "24-MAY-22", "13-JAN-23"], "date, 60 of 60", "century-from = 1930"),
        (["16FEB2020", "24MAY2022", "13JAN2023"], "%d%b%Y", 'date-formats = ["%d%b%Y"]'),
        (["2020-02-16T08:00:00Z", "2022-05-24T13:28:17-05:00"], "%Y-%m-%dT%H:%M:%S%z", ""),
        (["2020-02-16 08:00:00.000"], "%Y-%m-%d %H:%M:%S.%f", ""),
        (["02/16/2020", "24/05/2022", "03/04/2021"], "two orders of day and month fit: 20", ""),
        (["02.16.2020", "24.05.2022", "03.04.2021"], "two orders of day and month fit: 20", ""),
        (["Feb 16 2020", "May 24 2022"], "date, 60 of 60", 'date-formats = ["%b %d %Y"]'),
        (["02/11/2020", "04/05/2022", "03/04/2021"], "ambiguous: no day is above 12", ""),
        ([str(43877 + i) for i in range(60)], "a spreadsheet's days since 1900?", ""),
        (["none", "yes"], "'none' 30, 'yes' 30", ""),
        (["k.A.", "4.5", "5.5"], "number, 40 of 60", 'missing = ["k.A."]'),
        (["n/k", "4.5", "5.5", "1.25", "7"], "'n/k' 12 times; by label: ", ""),
    ],
)  # fmt: skip
def test_a_columns_kind_is_told(tmp_path: Path, cells: list[str], words: str, lines: str) -> None:
    rows = [f"{cells[i % len(cells)]},{i % 4 // 2}" for i in range(60)]
    _, notes, profile = notes_of(tmp_path, "\n".join(["v,dx", *rows, *rows[:0]]))
    assert words in notes, notes
    assert lines in profile
    assert ("none" in profile) is False
