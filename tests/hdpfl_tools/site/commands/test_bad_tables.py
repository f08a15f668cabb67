"""Every step of a data manager with every bad table: one line, the file named, no record shown."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pytest

from hdpfl_tools.tables.sources import csv_lines
from tests.client_app.messages import ask
from tests.hdpfl_tools.site.commands.conftest import SiteFolder

HEADER = "y,a,c"
SECRET = "PATIENT-123"


def table(rows: list[str], header: str = HEADER) -> bytes:
    return ("\n".join([header, *rows]) + "\n").encode()


def excel() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("xl/worksheets/sheet1.xml", SECRET)
    return content.getvalue()


ROWS = [f"{i % 2},{i % 10},x" for i in range(40)]
EMPTY = "the table is empty; its first line must be a header of names"
OTHER, DAMAGED = "'data.format' = \"table\" reads it", "a gzip file that is damaged"
EXCEL = "an Excel file, not a CSV; 'data.format' = \"table\" reads it"
ZEROS = "UTF-16 without its mark; save it as CSV (UTF-8)"
REFUSED = {
    "empty": (b"", EMPTY, EMPTY),
    "blank lines": (b"\r\n \r\n", EMPTY, EMPTY),
    "a column twice": (
        table([f"{SECRET},1,2,x"], "y,a,a,c"), "",
        "has column 'a' twice"),
    "an Excel file": (excel(), "cannot be read as a workbook", EXCEL),
    "UTF-16": (table(ROWS).decode().encode("utf-16"), "iconv -f UTF-16", "iconv -f UTF-16"),
    "UTF-16 without its mark": (table(ROWS).decode().encode("utf-16-le"), ZEROS, ZEROS),
    "Parquet": (b"PAR1" + SECRET.encode(), "not a readable Parquet file", OTHER),
    "compressed": (b"\x1f\x8b\x08\x00" + SECRET.encode(), DAMAGED, DAMAGED),
    "no record": (table([]), "no record that can be cut", "no record can be used"),
    "no label in any record": (
        table([",1,x"] * 40), "'y', which --label names, is missing in every record",
        "no record can be used"),
    "nothing but labels": (
        table(["1,,", "0,,"] * 20), "",
        "every column of the schema is missing in every record: nothing can be learned"),
    "labels outside of the classes": (
        table([f"{SECRET},1,x"] * 40), "", "cannot be read: 'PATIENT-123' 40 times"),
}  # fmt: skip
"""Table, error of ``schema --to`` (empty: it drafts) and error of ``profile check``."""
ACCEPTED = {
    "one record": (table(["1,3,x"]), "1 records for training, fewer than the 40 declared"),
    "one class": (table([f"1,{i % 10},x" for i in range(40)]), "every label is of the same class"),
    "a label outside of the classes": (
        table([*ROWS, f"{SECRET},1,x"]), "left out: 1, no known label"),
    "a byte order mark": (b"\xef\xbb\xbf" + table(ROWS), "40 for training"),
}  # fmt: skip


def write(site: SiteFolder, content: bytes) -> Path:
    path = site.folder / "records.csv"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_cannot_be_used_is_named_in_one_line(opened: SiteFolder, name: str) -> None:
    content, of_draft, of_check = REFUSED[name]
    path = write(opened, content)
    drafted = opened.bare("schema", path, "--label", "y", "--out", opened.folder / "s.toml")
    if of_draft:
        error = drafted.error()
        assert of_draft in error and error.startswith(f"error: {path}: "), error
        assert not (opened.folder / "s.toml").exists()
    else:
        assert drafted.code == 0, drafted.err
    checked = opened("profile", "check", "--terms", opened.terms_path)
    assert (checked.code, checked.err) == (1, "")
    errors = [line for line in checked.out.splitlines() if line.startswith("error ")]
    assert of_check in errors[0] and " data: " in errors[0], checked.out


@pytest.mark.parametrize("name", [*REFUSED, *ACCEPTED])
def test_a_run_over_it_writes_nothing_of_a_record(
    opened: SiteFolder, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the table holds, the log and the reply have no cell of it."""
    write(opened, (REFUSED | ACCEPTED)[name][0])
    reply = ask(opened.profile_path, opened.terms)
    assert SECRET not in caplog.text + str(reply)
    captured = opened.capsys.readouterr()
    assert SECRET not in captured.out + captured.err


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_long_table_shows_on_a_terminal_how_far_it_is_read(
    opened: SiteFolder, monkeypatch: pytest.MonkeyPatch, on_terminal: bool
) -> None:
    write(opened, table(ROWS))
    monkeypatch.setattr(csv_lines, "LINES_AT_A_TIME", 20)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal, raising=False)
    checked = opened("profile", "check", "--terms", opened.terms_path)
    assert checked.code == 0
    assert checked.err == ("\rreading: 20 lines\rreading: 40 lines\n") * on_terminal


def test_a_run_shows_nobody_how_long_its_table_is(
    opened: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(opened, table(ROWS))
    monkeypatch.setattr(csv_lines, "LINES_AT_A_TIME", 20)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    opened.capsys.readouterr()
    ask(opened.profile_path, opened.terms)
    assert "lines" not in opened.capsys.readouterr().err
