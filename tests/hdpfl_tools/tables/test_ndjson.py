"""NDJSON: each line is read by itself, and changes how no other one is read."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.data_source import DataSource, QueryTable, Withdrawn, keyed_digest
from hdpfl_flower.data.columns import MAX_RECORD
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.frozen_table import import_table, rows_of, table_path
from hdpfl_tools.tables.own_table import OwnTable
from hdpfl_tools.tables.screen.losses import table_losses
from hdpfl_tools.tables.site_data import SiteData, stored_site_data
from hdpfl_tools.tables.sources.csv_rows import AS_USUAL
from hdpfl_tools.tables.sources.frozen_rows import frozen_rows
from hdpfl_tools.tables.sources.json_lines import JsonRows, json_table
from hdpfl_tools.tables.table_reader import load_table
from hdpfl_tools.tables.table_records import read_table
from tests.hdpfl_tools.tables.test_imports import by_id

SCHEMA = """
id = "pid"
[label]
column = "y"
classes = [["0"], ["1"]]
[[columns]]
name = "age"
aliases = ["Alter"]
type = "number"
bounds = [0, 100]
fill = 50
[[columns]]
name = "sex"
type = "category"
categories = ["f", "m"]
[[columns]]
name = "crp"
type = "number"
bounds = [0, 50]
"""
WITHOUT_ID = SCHEMA.replace('id = "pid"\n', "")
BASE = [
    {"pid": f"{n:08d}-0000-4000-8000-00000000000A", "y": n % 2, "age": 30 + n, "sex": "fm"[n % 2]}
    for n in range(24)
]
Z: dict[str, Any] = {"pid": "z", "y": 1, "age": 33, "sex": "f"}
OTHERS = {
    "a number among texts": Z | {"sex": 1},
    "a number as an id": Z | {"pid": 7},
    "a text among numbers": Z | {"age": "33", "y": "1"},
    "a list": Z | {"sex": ["f"]},
    "an object": Z | {"age": {"v": [1, {"w": None}]}},
    "a boolean": Z | {"y": True, "age": False},
    "a float": Z | {"age": 0.1, "y": 1.0},
    "a long number": Z | {"age": 10**400, "pid": 2**70},
    "nothing": {},
    "null": dict.fromkeys(Z),
    "a key of its own": Z | {"crp": 7},
    "a key in other letters": Z | {"AGE": 5, "Pid": 5, " sex": "m"},
    "another name of a column": {"pid": "z", "y": 1, "Alter": 3},
    "both names of a column": Z | {"Alter": 3},
    "a date": Z | {"sex": "1960-01-01"},
    "half a character": Z | {"sex": "\ud800", "\udc80": 1},
    "a zero byte": Z | {"sex": "\0"},
    "no finite number": Z | {"age": float("nan"), "crp": float("inf")},
}
LINES = {
    "a damaged line": b'{"pid":"z","y":1,"age":33,"sex":"f"',
    "a line of no object": b"[1, 2]",
    "a line in another encoding": b'{"pid":"\xfc","y":1}',
    "a line that is nested too deeply": b'{"age":' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    "a line that is too long": b'{"pid":"' + b"z" * MAX_RECORD + b'"}',
    "a line of too many keys": json.dumps({str(n): 1 for n in range(2000)}).encode(),
    "a quote too many": b'{"pid":"z""}',
    "bytes": bytes(range(11, 256)),
    "a number of too many digits": b'{"pid":' + b"9" * 5000 + b"}",
    "a key that stands twice": b'{"pid":"z","pid":null,"y":1}',
}
CHANGES = {name: json.dumps(row).encode() for name, row in OTHERS.items()} | LINES


def write(path: Path, *more: bytes, at: int = 7) -> None:
    lines = [json.dumps(row).encode() for row in BASE]
    path.write_bytes(b"\n".join([*lines[:at], *more, *lines[at:], b""]))


def prepared(folder: Path, schema: str, **keys: Any) -> SiteData:
    """Return the records of the table, imported without its schema."""
    source = DataSource.model_validate({"path": folder / "t.ndjson", "holdout": 0.5, **keys})
    ledger = folder / "ledger.sqlite"
    facts = import_table(source, ledger)
    frozen = source.frozen(lambda: table_path(ledger, facts.table))
    return stored_site_data(frozen, Schema.parse(schema).task, schema)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [0, 7, 24])
def test_a_record_changes_no_other_one(tmp_path: Path, change: str, at: int) -> None:
    write(tmp_path / "t.ndjson")
    before = by_id(prepared(tmp_path, SCHEMA, id="pid"))
    assert sum(map(len, before)) == len(BASE) and min(map(len, before)) > 5
    write(tmp_path / "t.ndjson", CHANGES[change], at=at)
    after = by_id(prepared(tmp_path, SCHEMA, id="pid"))
    for old, new in zip(before, after, strict=True):
        assert {unit: new.get(unit) for unit in old} == old
    assert sum(map(len, after)) <= len(BASE) + 1


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_draws_no_other_one_again(tmp_path: Path, change: str) -> None:
    """Without an id, the content of a record decides whether it is held out."""
    write(tmp_path / "t.ndjson")
    before = prepared(tmp_path, WITHOUT_ID)
    write(tmp_path / "t.ndjson", CHANGES[change])
    after = prepared(tmp_path, WITHOUT_ID)
    for old, new in ((before.train, after.train), (before.test, after.test)):
        assert old is not None and new is not None
        rows = [row.tobytes() for row in new.features]
        assert len(old.features) > 5 and len(rows) <= len(old.features) + 1
        assert all(row.tobytes() in rows for row in old.features)


@pytest.mark.parametrize("change", CHANGES)
def test_a_withdrawn_unit_does_not_come_back(tmp_path: Path, change: str) -> None:
    key, left = bytes(32), str(BASE[3]["pid"]).encode()
    own = OwnTable(withdrawn=Withdrawn(key, frozenset([keyed_digest(key, left)])))
    write(tmp_path / "t.ndjson", CHANGES[change])
    source = DataSource.model_validate({"path": tmp_path / "t.ndjson", "id": "pid"})
    facts = import_table(source, tmp_path / "ledger.sqlite")
    path = table_path(tmp_path / "ledger.sqlite", facts.table)
    read = read_table(path, "frozen", Schema.parse(SCHEMA), own)
    assert read.ids is not None and left not in read.ids
    assert {str(row["pid"]).encode() for row in BASE} - {*read.ids} == {left}


def cells(path: Path, *lines: str, decimal: str = ".") -> dict[str, list[bytes | None]]:
    path.write_text("\n".join(lines), encoding="utf-8")
    form = OwnTable.of(DataSource(path=path, decimal=decimal)).form
    rows = JsonRows(path, form)
    (batch,) = rows.batches([*range(len(rows.header))])
    read = [column.to_pylist() for column in batch.columns]
    return dict(zip(map(str, rows.header), read, strict=True))


def test_a_value_has_one_spelling(tmp_path: Path) -> None:
    spellings = {
        '"7"': b"7",
        "7": b"7",
        "7.0": b"7",
        "1.50": b"1.5",
        "1E-7": b"1e-07",
        "9007199254740993": b"9007199254740993",
        "1e999": b"1e999",
        "-Infinity": b"-Infinity",
        "true": b"true",
        "false": b"false",
        '"1.50"': b"1.50",
        '{"a": [1, 2.50, "\\u00fc", null]}': '{"a":[1,2.5,"ü",null]}'.encode(),
        "[]": b"[]",
        "null": None,
        "NaN": None,
        '""': None,
    }
    lines = [f'{{"x": {value}}}' for value in spellings]
    assert cells(tmp_path / "t.ndjson", *lines) == {"x": [*spellings.values()]}
    assert cells(tmp_path / "t.ndjson", '{"x": 1.5, "y": "1.5"}', decimal=",") == {
        "x": [b"1,5"], "y": [b"1.5"],
    }  # fmt: skip


def test_columns_are_the_keys_in_their_order_and_those_that_are_wanted(tmp_path: Path) -> None:
    read = cells(tmp_path / "t.ndjson", "\ufeff" + '{"b": 1, " a ": 2}', "", '{"c": 3, "b": 4}\r')
    assert [*read.items()] == [("b", [b"1", b"4"]), ("a", [b"2", None]), ("c", [None, b"3"])]
    wanted = OwnTable().all_wanted(Schema.parse(SCHEMA))
    raw = load_table(tmp_path / "t.ndjson", "table", wanted)
    assert all(column.absent is not None and column.absent.all() for column in raw.columns.values())
    (tmp_path / "t.ndjson").write_text("\n".join(json.dumps({f"k{n}": 1}) for n in range(2001)))
    with pytest.raises(DataError, match="more than 2000 different keys"):
        JsonRows(tmp_path / "t.ndjson", AS_USUAL)
    (tmp_path / "t.ndjson").write_text('{"a": \n{}')
    with pytest.raises(DataError, match="no line that is an object of JSON with a key"):
        JsonRows(tmp_path / "t.ndjson", AS_USUAL)


def test_an_imported_table_has_each_wanted_column_once(tmp_path: Path) -> None:
    write(tmp_path / "t.ndjson", b'{"Alter": 3}', b'{"Alter": 4, "age": 5}')
    ledger, wanted = tmp_path / "ledger.sqlite", OwnTable().all_wanted(Schema.parse(SCHEMA))
    facts = import_table(DataSource(path=tmp_path / "t.ndjson", id="pid"), ledger)
    assert [name for name, _, _ in facts.columns] == ["pid", "y", "age", "sex", "Alter"]
    rows = frozen_rows(table_path(ledger, facts.table), wanted)
    assert rows.header == ["pid", "y", "age", "sex", "", "crp"]
    (batch,) = rows.batches([5, 2])
    assert [column.to_pylist()[7:9] for column in batch.columns] == [[None] * 2, [b"3", b"5"]]


def test_lost_lines_are_counted_and_told(tmp_path: Path) -> None:
    write(tmp_path / "t.ndjson", *(LINES[name] for name in ("a damaged line", "bytes")))
    source = DataSource.model_validate({"path": tmp_path / "t.ndjson", "id": "pid"})
    facts = import_table(source, tmp_path / "ledger.sqlite")
    assert facts.rows == len(BASE) + 2
    schema, own = Schema.parse(SCHEMA), OwnTable()
    path = table_path(tmp_path / "ledger.sqlite", facts.table)
    for where in ((path, "frozen"), (tmp_path / "t.ndjson", "table")):
        raw = load_table(*where, own.all_wanted(schema), lost=True)
        told = " ".join(line for _, line in table_losses(raw, schema, own).lines())
        assert "lost: 2 of 26 records" in told
        assert "2 no whole JSON object on one line (records 8, 9, counted from 1)" in told
        assert "Write each record as one JSON object on a line of its own" in told


@pytest.mark.parametrize("name", ["t.ndjson", "t.jsonl", "t.json"])
def test_a_damaged_first_line_is_lost_alone(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, b'{"pid": "z"', at=0)
    source = DataSource.model_validate({"path": tmp_path / name, "id": "pid"})
    assert import_table(source, tmp_path / "ledger.sqlite").rows == len(BASE) + 1


QUERY = """
SELECT json ->> '$.pid' AS pid, json ->> '$.y' AS y, TRY_CAST(json ->> '$.age' AS DOUBLE) AS age,
  json ->> '$.sex' AS sex, json ->> '$.name[0].family' AS crp
FROM t WHERE (json ->> '$.pid') IS NOT NULL ORDER BY pid, sex"""


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_changes_no_other_one_of_a_query(tmp_path: Path, change: str) -> None:
    """No column or type of the query's table depends on the records, nor does any error."""
    pytest.importorskip("duckdb")
    table = QueryTable(path=tmp_path / "t.ndjson", id="json ->> '$.pid'")
    source = DataSource(query=QUERY, tables={"t": table}, id="pid")

    def rows() -> list[tuple[Any, ...]]:
        read = rows_of(source)
        columns = [c.to_pylist() for b in read.batches([*range(5)]) for c in b.columns]
        return [*zip(*columns, strict=True)]

    write(tmp_path / "t.ndjson")
    before = rows()
    assert len(before) == len(BASE)
    assert json_table(tmp_path / "t.ndjson", AS_USUAL).column_names == ["json"]
    write(tmp_path / "t.ndjson", CHANGES[change])
    after = rows()
    assert [row for row in after if row in before] == before and len(after) <= len(BASE) + 1


def test_a_huge_line_takes_bounded_memory_and_many_lines_little_time(tmp_path: Path) -> None:
    draws = random.Random(5)
    rows = [Z | {"pid": f"P{n}", "age": draws.random(), "note": "x" * 100} for n in range(20_000)]
    (tmp_path / "t.ndjson").write_text("\n".join(map(json.dumps, rows)))
    read = JsonRows(tmp_path / "t.ndjson", AS_USUAL)
    batches = [*read.batches([0, 2])]
    assert sum(len(batch.positions) for batch in batches) == read.rows == 20_000
    assert [cell for batch in batches for cell in batch.columns[0].to_pylist()][-1] == b"P19999"
