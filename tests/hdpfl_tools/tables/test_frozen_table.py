"""An import is whole or none: faults of a source, a full disk, a kill; and what a change is."""

from __future__ import annotations

import gzip
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.data_source import DataSource
from hdpfl_flower.errors import DataError
from hdpfl_flower.ledger.checked_table import facts_path, read_facts, table_folder
from hdpfl_tools.tables import frozen_table
from hdpfl_tools.tables.frozen_table import checked_table, delete_table, import_table, table_path
from hdpfl_tools.tables.sources.frozen_rows import frozen_rows
from hdpfl_tools.tables.sources.open_rows import open_rows

SECRET = "PATIENT-123"


def source_of(path: Path, **keys: Any) -> DataSource:
    return DataSource.model_validate({"path": str(path), **keys})


def workbook(path: Path, change: Callable[[Any], object] = lambda _: None) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    for row in (["a", "b"], [1, 2.5], [SECRET, None]):
        book.active.append(row)
    change(book)
    book.save(path)
    return path


def second_sheet(book: Any) -> None:
    book.create_sheet("Other").append([1])


def merged(book: Any) -> None:
    book.active.append([1, 2])
    book.active.merge_cells("A2:A3")


def formula(book: Any) -> None:
    book.active["B3"] = "=A2+1"


def empty(book: Any) -> None:
    book.active.delete_rows(1, 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (second_sheet, "several sheets"),
        (merged, "merged cells"),
        (formula, "formulas without values"),
        (empty, "is empty"),
    ],
)
def test_a_workbook_that_reads_in_two_ways_is_refused(
    tmp_path: Path, change: Callable[[Any], object], words: str
) -> None:
    path = workbook(tmp_path / "t.xlsx", change)
    with pytest.raises(DataError, match=words) as caught:
        import_table(source_of(path), tmp_path / "ledger.sqlite")
    assert SECRET not in str(caught.value)
    assert read_facts(tmp_path / "ledger.sqlite") is None


def test_a_workbook_with_a_password_is_named(tmp_path: Path) -> None:
    begin = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
    (tmp_path / "t.xlsx").write_bytes(begin + "EncryptedPackage".encode("utf-16-le"))
    with pytest.raises(DataError, match=r"an Excel file with a password.*remove the password"):
        import_table(source_of(tmp_path / "t.xlsx"), tmp_path / "ledger.sqlite")


def test_a_database_that_is_locked_or_holds_several_tables_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table a(x, y)")
        connection.execute("insert into a values (1, ?)", (SECRET,))
    import_table(source_of(path), tmp_path / "ledger.sqlite")
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    connection.execute("create table b(x)")
    with pytest.raises(DataError, match="several tables"):
        import_table(source_of(path), tmp_path / "ledger.sqlite")
    for select in ("DROP TABLE a", "ATTACH '/tmp/x.db' AS x", "PRAGMA journal_mode = DELETE"):
        with pytest.raises(DataError, match="cannot be read as an SQLite database"):
            import_table(source_of(path, select=select), tmp_path / "ledger.sqlite")
    connection.execute("pragma locking_mode = exclusive")
    connection.execute("begin exclusive")
    with pytest.raises(DataError, match="another program has locked the database"):
        import_table(source_of(path, select="SELECT * FROM a"), tmp_path / "ledger.sqlite")
    connection.close()


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"%PDF-1.7", "a PDF, not a table"),
        (b"<html><table>", "an HTML page"),
        (b"<?xml version='1.0'?>", "an XML file"),
        (b"[{}, {}]", "a JSON file that is one document.*one object on each line"),
        (b'{\n "resourceType": "Bundle"', "one document.*'.entry\\[\\].resource'"),
        (b"RDX3\n", "an R data file"),
        (gzip.compress(b"X\n\0\0\0\3" + b"\0" * 2**20), "an R data file"),
        (gzip.compress(b"\0" * 257 + b"ustar" + b"\0" * 2**20), "a tar archive.*unpack it"),
        (b"a.csv" + b"\0" * 252 + b"ustar", "a tar archive"),
        (b"\0" * 128 + b"DICM", "a DICOM file"),
        (b"\0\1\0\0Standard ACE DB\0", "an Access database"),
        (b"12345678DUCK\x43\0\0\0", "a DuckDB database"),
        (b"FEA1\0\0\0\0", "a Feather file"),
        (b"ORC\x08\0\x12", "an ORC file"),
        (b"\x89PNG\r\n", "an image"),
        (b"\x80\4\x95", "a pickle of Python"),
        (b"-- MySQL dump 10.13\n", "an SQL dump.*load it into its database"),
        (b"INSERT INTO x VALUES (1)", "an SQL dump"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS.*git lfs pull"),
        (b"-----BEGIN PGP MESSAGE-----\n", "an encrypted file.*decrypt it"),
        (b"\xff\xfe\0\0", "in UTF-32"),
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"$FL2" + b"x" * 99, "cannot be read as a file of statistics"),
        (b"SQLite format 3\0" + b"x" * 99, "cannot be read as an SQLite database"),
        (b"PAR1" + b"x" * 99, "not a readable Parquet"),
        (b"\x1f\x8b\x08\0" + b"x" * 99, "a gzip file that is damaged"),
    ],
)
def test_a_file_of_another_kind_is_named_by_its_kind(
    tmp_path: Path, begin: bytes, words: str
) -> None:
    (tmp_path / "t.csv").write_bytes(begin + SECRET.encode())
    with pytest.raises(DataError, match=words) as caught:
        import_table(source_of(tmp_path / "t.csv"), tmp_path / "ledger.sqlite")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["ORCHARD", "PAR1", "PAR1_x", "RDA1", "GIF8", "BZh1", "[id]", "{id}", "FEA1", "12345678DUCK"],
)
def test_a_header_that_begins_as_another_kind_is_one(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{name},b\n1,2\n")
    facts = import_table(source_of(path), tmp_path / "ledger.sqlite")
    assert [column for column, _, _ in facts.columns] == [name, "b"]


@pytest.mark.parametrize(("place", "mark"), [(128, b"DICM"), (257, b"ustar")])
@pytest.mark.parametrize("more", [b"", b"\0"])
def test_no_record_makes_a_table_another_kind_of_file(
    tmp_path: Path, place: int, mark: bytes, more: bytes
) -> None:
    content = b"a,b\n" + b"1,2\n" * ((place - 8) // 4)
    content += b"3," + more
    content = content.ljust(place, b"x") + mark + b"\n4,5\n"
    (tmp_path / "t.csv").write_bytes(content)
    assert content[place:].startswith(mark)
    facts = import_table(source_of(tmp_path / "t.csv"), tmp_path / "ledger.sqlite")
    assert facts.rows == content.count(b"\n") - 1


def test_a_header_in_another_encoding_is_imported(tmp_path: Path) -> None:
    path, ledger = tmp_path / "t.csv", tmp_path / "ledger.sqlite"
    path.write_bytes("Gr\u00f6\u00dfe,a\n180,1\n170,2\n".encode("cp1252"))
    facts = import_table(source_of(path), ledger)
    assert read_facts(ledger) == facts and [name for name, _, _ in facts.columns][1] == "a"
    tables = {"t": {"path": str(path), "id": "a"}}
    query = DataSource.model_validate({"query": "SELECT a FROM t", "tables": tables, "id": "a"})
    assert import_table(query, ledger).rows == 2


def test_an_import_that_is_cut_off_leaves_the_old_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, path = tmp_path / "ledger.sqlite", tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    facts = import_table(source_of(path), ledger)
    assert import_table(source_of(path), ledger) == facts
    path.write_text("a,b\n1,2\n3,4\n")
    real = frozen_table._head

    def full(_: object) -> object:
        raise OSError(28, "No space left on device")

    def stopped(_: object) -> object:
        raise KeyboardInterrupt

    for fault, error in ((full, DataError), (stopped, KeyboardInterrupt)):
        monkeypatch.setattr(frozen_table, "_head", fault)
        with pytest.raises(error, match="No space left.*stays" if error is DataError else None):
            import_table(source_of(path), ledger)
        assert read_facts(ledger) == facts == checked_table(source_of(path), ledger)
        assert frozen_rows(table_path(ledger, facts.table)).rows == 1
        assert len([*table_folder(ledger).iterdir()]) == 2
    monkeypatch.setattr(frozen_table, "_head", real)
    (table_folder(ledger) / "7.part").write_bytes(b"of a process that was killed")
    later = import_table(source_of(path), ledger)
    assert later.table != facts.table and later.rows == 2
    names = {file.name for file in table_folder(ledger).iterdir()}
    assert names == {"table.json", f"{later.table}.parquet"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in table_folder(ledger).rglob("*"))
    assert delete_table(ledger) > 0 and not table_folder(ledger).exists()


def test_a_table_that_was_touched_is_not_read(tmp_path: Path) -> None:
    ledger, path = tmp_path / "ledger.sqlite", tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    facts = import_table(source_of(path), ledger)
    table = table_path(ledger, facts.table)
    content = bytearray(table.read_bytes())
    content[40] ^= 1
    table.write_bytes(content)
    with pytest.raises(DataError, match="is damaged; import it again"):
        open_rows(table, "frozen", frozen_table.OwnTable.of(source_of(path)).form)
    facts_path(ledger).write_bytes(b"{}")
    with pytest.raises(DataError, match="facts of the imported table are damaged"):
        read_facts(ledger)


FRAGMENTS = (
    b'"', b'""', b'"""', b",", b"\r", b"\r\n", b"\0", b"\xff", b"\xc3", b'\\"', b"\\", b";", b"'",
    b'",', b',"', b"\x1a", b"#", b" ", b"\xef\xbb\xbf", b"\xe2\x80\xa8",
)  # fmt: skip


def mutated(line: bytes, draws: random.Random) -> bytes:
    content = bytearray(line)
    for _ in range(draws.choice([1, 1, 2, 3])):
        at = draws.randrange(len(content) + 1)
        match draws.randrange(4):
            case 0 if content:
                del content[min(at, len(content) - 1)]
            case 1:
                content[at:at] = draws.choice(FRAGMENTS)
            case 2:
                content[at : at + draws.randrange(6)] = draws.randbytes(draws.randrange(5))
            case _:
                content = bytearray(draws.choice([b"", b'"', b"x", b",,,,,,", b'a"b,1,"c,1']))
    # A line end in it makes more records, and an odd quote is a cell's beginning (RFC 4180).
    even = content.count(b'"') % 2 == 0 and b"\n" not in content
    return bytes(content) if even else line


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_record_changes_another_through_the_import(tmp_path: Path, count: int) -> None:
    draws = random.Random(11)
    notes = ("ok", '"stable, but weak"', '"said ""better"""', '"line 1\nline 2"', "", "5 cm")
    lines = [f"P{i:03d},{draws.randint(20, 90)},{draws.choice(notes)},{i % 2}" for i in range(60)]
    base = [line.encode() for line in lines]
    ledger, path = tmp_path / "ledger.sqlite", tmp_path / "t.csv"

    def read(content: list[bytes]) -> list[tuple[bytes, ...]]:
        path.write_bytes(b"\n".join([b"id,age,note,dx", *content, b""]))
        facts = import_table(source_of(path, id="id"), ledger)
        rows = frozen_rows(table_path(ledger, facts.table))
        (batch,) = rows.batches(range(4))
        return [*zip(*(column.to_pylist() for column in batch.columns), strict=True)]

    whole = read(base)
    assert len(whole) == 60
    cells = {b"ok", b"stable, but weak", b'said "better"', b"line 1\nline 2", b"", b"5 cm"}
    assert {row[2] for row in whole} == cells
    for _ in range(count):
        place = draws.randrange(60)
        changed = read([*base[:place], mutated(base[place], draws), *base[place + 1 :]])
        rest = whole[:place] + whole[place + 1 :]
        assert [row for row in changed if row in rest] == rest
