"""Losses of damaged tables: nothing is lost that is not told, and told by the right label."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.data.schema import Schema
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.screen.losses import TableLosses, table_losses
from hdpfl_tools.tables.site_check import about_losses, check_site_data
from hdpfl_tools.tables.table_reader import load_table
from hdpfl_tools.tables.table_records import read_table

SCHEMA_TEXT = """
[label]
column = "dx"
classes = [["no"], ["yes"]]
[[columns]]
name = "age"
type = "number"
bounds = [0, 120]
[[columns]]
name = "sex"
type = "category"
categories = ["f", "m"]
"""
SCHEMA = Schema.parse(SCHEMA_TEXT)
HEADERS = ("id,age,sex,dx,note", "id,note,age,sex,dx", "note,dx,sex,age,id")


def losses_of(path: Path, text: str) -> TableLosses:
    (path / "t.csv").write_text(text, newline="")
    own = OwnTable.of(DataSource.model_validate({"format": "csv", "path": "t.csv"}))
    raw = load_table(path / "t.csv", "csv", own.all_wanted(SCHEMA), own.form, lost=True)
    return table_losses(raw, SCHEMA, own)


def damaged(draw: random.Random) -> tuple[str, int, dict[str, int], int, int]:
    """Return a table, its rows, the labels of lost ones, those without, and bad cells."""
    names = draw.choice(HEADERS).split(",")
    rows, lost, hidden, bad_cells = [], {"no": 0, "yes": 0}, 0, 0
    written = draw.randrange(1, 40)
    for number in range(written):
        label = draw.choice(("no", "yes"))
        cells = {"id": f"P{number:04}", "age": str(draw.randrange(20, 90)), "dx": label,
                 "sex": draw.choice("fm"), "note": draw.choice(("ok", "", '"a, b"', '"a\nb"',
                 '"a ""b"""', '"a \\"b\\", c"', '"a\n\n""b"" c"'))}  # fmt: skip
        kind = draw.randrange(8)
        if kind == 0:
            cells["note"] = draw.choice(("pain, fever", "a, b, c, d"))
            lost[label] += 1
        elif kind == 1 and names[0] == "id" and names[-1] != "note":
            cells["note"] = "wound dry\nreview"
            lost[label] += 1
        elif kind == 2:
            cells["note"] = draw.choice(('"a" b', '"a"" b" c'))
            lost[label] += 1
        elif kind == 3:
            cells["age"] = draw.choice(("<20", "n/k", "30 y", "\u00bd"))
            bad_cells += 1
        elif kind == 4:
            kept = names[: draw.randrange(1, len(names) - 1)]
            known = "dx" in kept
            lost[label] += known
            hidden += not known
            cells["note"] = "x"
            rows.append(",".join(cells[name] for name in kept))
            continue
        rows.append(",".join(cells[name] for name in names))
    return "\n".join([",".join(names), *rows, ""]), written, lost, hidden, bad_cells


@pytest.mark.parametrize("tables", [pytest.param(60), pytest.param(2000, marks=pytest.mark.slow)])
def test_rows_read_and_rows_reported_lost_are_the_rows_written(tmp_path: Path, tables: int) -> None:
    draw = random.Random(7)
    for _ in range(tables):
        text, written, lost, hidden, bad_cells = damaged(draw)
        found = losses_of(tmp_path, text)
        read = read_table(tmp_path / "t.csv", "csv", SCHEMA)
        assert len(read.positions) + found.rows.lost == found.rows.held == written, text
        told = {name: gone for name, gone, _ in found.rows.by_label}
        if found.rows.lost:
            assert told == lost, text
            assert found.rows.lost - sum(told.values()) == hidden, text
        assert found.cells["age"].lost == read.summary.unreadable["age"] == bad_cells, text


NOTED = "id,age,sex,dx,note\n"


def test_a_loss_that_depends_on_the_label_is_an_error(tmp_path: Path) -> None:
    """Far below a fifth, too; and one that does not depend on it is a warning."""

    def table(bad: set[int]) -> str:
        return NOTED + "".join(
            f"{i},{'<30' if i in bad else 30 + i % 9},{'fm'[i % 2]},{('no', 'yes')[i % 2]},ok\n"
            for i in range(400)
        )

    every = losses_of(tmp_path, table({*range(1, 60, 2)}))
    (line,) = [line for _, line in every.lines() if "cannot be read" in line]
    assert line.startswith("error: column 'age': 30 of 400 cells that hold something cannot be ")
    assert "'<30' 30 times; by label: 0 of 200 with 'no', 30 of 200 with 'yes'" in line
    assert "the loss depends on the label (Fisher's exact test, p = " in line
    (line,) = [line for _, line in losses_of(tmp_path, table({*range(30)})).lines()
               if "cannot be read" in line]  # fmt: skip
    assert line.startswith("warning: ") and "depends" not in line
    (line,) = [line for _, line in losses_of(tmp_path, table({1, 2, 3})).lines()
               if "cannot be read" in line]  # fmt: skip
    assert line.startswith("column 'age': 3 of 400")


def test_false_alarms_are_as_rare_as_stated(tmp_path: Path) -> None:
    """1,000 tables whose losses do not depend on the label: at most a few are errors."""
    from hdpfl_tools.tables.screen.losses import Labels, loss

    draw, alarms = np.random.default_rng(5), 0
    for _ in range(1000):
        labels = Labels(("a", "b", "c"), draw.integers(0, 3, 300), np.zeros(0, np.int64))
        alarms += loss(draw.random(300) < 0.1, np.ones(300, bool), labels).depends(1)
    assert alarms <= 5  # Poisson of mean 1: more than 5 by chance once in 1,700 seeds


def test_the_case_of_the_field_is_told_by_plan_and_check(tmp_path: Path) -> None:
    """All rows with an unquoted line break in a note have one label."""
    rows = [f"{i},a{chr(10) if i % 2 else ' '}b,{30 + i},{'fm'[i // 2 % 2]},{('no', 'yes')[i % 2]}"
            for i in range(60)]  # fmt: skip
    text = "\n".join(["id,note,age,sex,dx", *rows])
    (tmp_path / "t.csv").write_text(text)
    source = DataSource.model_validate({"format": "csv", "path": str(tmp_path / "t.csv")})
    told = about_losses(source, SCHEMA_TEXT)
    assert told[0].startswith("lost: 30 of 60 records")
    assert "error: 30 of 60 records cannot be cut" in told[1]
    assert "30 broken by a line break outside of quotes" in told[1]
    assert "0 of 30 with 'no', 30 of 30 with 'yes'" in told[1]
    assert told[1] in check_site_data(source, SCHEMA.task, SCHEMA_TEXT, 60)


def test_rows_swallowed_by_quotes_are_told(tmp_path: Path) -> None:
    swallowed = '1,30,f,no,"a\n2,40,m,yes,b\n3,50,f,no,c"\n4,60,m,yes,d\n'
    told = [line for _, line in losses_of(tmp_path, NOTED + swallowed).lines()]
    assert any("2 lines inside quotes look like whole records" in line for line in told)


def test_rows_between_quotes_that_close_in_another_column_are_lost_rows(tmp_path: Path) -> None:
    """Written: four rows, labels no, yes, no, yes; a quote opens in the first, ends in the third.

    RFC 4180 reads the first three as one record of seven cells.
    """
    written = '1,30,f,no,"cold\n2,40,m,yes,dry\n3,50,f",no,scar\n4,60,m,yes,ok\n'
    found = losses_of(tmp_path, NOTED + written)
    assert (found.rows.lost, found.rows.held) == (3, 4)
    assert found.rows.by_label == (("no", 2, 2), ("yes", 1, 2))


CROWD = "nine of ten records lie in"
LEAKS = """
[label]
column = "dx"
classes = [["0"], ["1"]]
[[columns]]
name = "a"
type = "number"
bounds = [0, 1000]
[[columns]]
name = "c"
type = "category"
categories = ["x", "y"]
"""


@pytest.mark.parametrize(
    ("number", "category", "words"),
    [
        (lambda i: i % 7, lambda i: "xy"[i % 3 % 2], ""),
        (lambda i: i % 7 + 10 * (i % 2), lambda i: "xy"[i % 3 % 2], "'a' is enough to tell"),
        (lambda i: "" if i % 2 else i % 7, lambda i: "xy"[i % 3 % 2], "'a' is enough to tell"),
        (lambda i: i % 7, lambda i: "xy"[i % 2], "'c' is enough to tell the label of these rec"),
        (lambda i: 5, lambda i: "xy"[i % 3 % 2], "'a' is constant"),
        (lambda i: i % 7, lambda i: "y", "'c' is constant"),
        (lambda i: i * 37 % 101, lambda i: "xy"[i % 3 % 2], "'a': every number is different"),
    ],
)
def test_leaks_and_ids_warned(tmp_path: Path, number: object, category: object, words: str) -> None:
    rows = [f"{number(i)},{category(i)},{i % 2}" for i in range(100)]  # type: ignore[operator]
    (tmp_path / "t.csv").write_text("\n".join(["a,c,dx", *rows]))
    source = DataSource.model_validate({"format": "csv", "path": str(tmp_path / "t.csv")})
    schema = Schema.parse(LEAKS)
    lines = check_site_data(source, schema.task, LEAKS, 100)
    assert "label 'dx': '0' 50, '1' 50" in lines
    warned = [line for line in lines if line.startswith("warning: ") and CROWD not in line]
    assert len(warned) == bool(words)
    assert all(re.search(re.escape(words), line) for line in warned)
