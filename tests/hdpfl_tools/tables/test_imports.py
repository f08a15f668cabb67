"""Exports of any kind give the features of the same patients' plain CSV, to the bit."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError
from hdpfl_tools.tables.site_data import SiteData, read_site_data
from hdpfl_tools.tables.withdrawals import load_profile

SCHEMA = """
id = "patient"
missing = ["", "?"]
[label]
column = "dx"
classes = [["0"], ["1"]]
[[columns]]
name = "age"
type = "number"
bounds = [18, 100]
[[columns]]
name = "sex"
type = "category"
categories = [["F", "female"], ["M", "male"]]
[[columns]]
name = "chol"
type = "number"
bounds = [100, 400]
[[columns]]
name = "crp"
type = "number"
bounds = [0, 50]
[[columns]]
name = "smoker"
type = "category"
categories = ["yes", "no"]
[[columns]]
name = "seen"
type = "number"
bounds = [0, 4000]
"""
DATES = '[data.columns.seen]\nto = "days"\nreference = "2015-01-01"\n'
CODED = '[data.columns.sex]\nvalues = { 1 = "F", 2 = "M" }\n'
Row = dict[str, Any]


def patients(count: int = 120) -> list[Row]:
    draws = random.Random(7)
    return [
        {
            "patient": f"{1000 + number}",
            "age": draws.randint(20, 90),
            "sex": draws.choice("FM"),
            "chol": draws.randint(120, 380),
            "crp": None if number % 11 == 0 else round(draws.expovariate(0.2), 3),
            "smoker": draws.choice(["yes", "no"]),
            "seen": dt.date(2016, 1, 1) + dt.timedelta(days=draws.randint(0, 2000)),
            "dx": draws.randint(0, 1),
        }
        for number in range(count)
    ]


PATIENTS = patients()
NAMES = [*PATIENTS[0]]


def text_of(rows: list[Row], mark: str = ",") -> str:
    lines = [mark.join("" if c is None else str(c) for c in row.values()) for row in rows]
    return "\n".join([mark.join(rows[0]), *lines, ""])


def plain(folder: Path) -> str:
    (folder / "t.csv").write_text(text_of(PATIENTS))
    return 'path = "t.csv"\n' + DATES


def zipped(folder: Path) -> str:
    with zipfile.ZipFile(folder / "t.zip", "w") as archive:
        archive.writestr("export/t.csv", text_of(PATIENTS))
    return 'path = "t.zip"\n' + DATES


def gzipped(folder: Path) -> str:
    (folder / "t.csv.gz").write_bytes(gzip.compress(text_of(PATIENTS, ";").encode()))
    return 'path = "t.csv.gz"\n' + DATES


def excel(folder: Path) -> str:
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("python_calamine")
    book = openpyxl.Workbook()
    book.active.title = "Info"
    book.active.append(["of ward 7"])
    sheet = book.create_sheet("Export")
    for row in (["Ward 7"], [], NAMES, *([*row.values()] for row in PATIENTS)):
        sheet.append(row)
    book.save(folder / "t.xlsx")
    return 'path = "t.xlsx"\nsheet = "Export"\n' + DATES


def frame(**changed: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyreadstat")
    table = pandas.DataFrame(PATIENTS)
    table["sex"] = table["sex"].map({"F": 1.0, "M": 2.0})
    return table.assign(**changed)


def spss(folder: Path) -> str:
    import pyreadstat

    crp = frame()["crp"].fillna(-99.0)  # a code that the file declares missing
    pyreadstat.write_sav(
        frame(crp=crp), folder / "t.sav", missing_ranges={"crp": [-99.0]},
        variable_value_labels={"sex": {1.0: "female", 2.0: "male"}},
    )  # fmt: skip
    return 'path = "t.sav"\n' + CODED + DATES


def stata(folder: Path) -> str:
    import pyreadstat

    pyreadstat.write_dta(frame(), folder / "t.dta")
    return 'path = "t.dta"\n' + CODED + DATES


def sas(folder: Path) -> str:
    import pyreadstat

    pyreadstat.write_xport(frame(), folder / "t.xpt")
    return 'path = "t.xpt"\n' + CODED + DATES


def sqlite(folder: Path) -> str:
    connection = sqlite3.connect(folder / "t.db")
    connection.execute(
        "create table lab(patient, age int, sex, chol real, crp real, smoker, seen, dx int)"
    )
    rows = [[str(c) if isinstance(c, dt.date) else c for c in row.values()] for row in PATIENTS]
    connection.executemany("insert into lab values (?,?,?,?,?,?,?,?)", rows)
    connection.execute("create table other(a)")
    connection.commit()
    return 'path = "t.db"\nselect = "SELECT * FROM lab"\n' + DATES


def parquet_parts(folder: Path) -> str:
    (folder / "t.parquet").mkdir()
    table = pa.Table.from_pylist(PATIENTS)
    pq.write_table(table.slice(0, 50), folder / "t.parquet" / "part-0.parquet")
    pq.write_table(table.slice(50), folder / "t.parquet" / "part-1.parquet")
    (folder / "t.parquet" / "_SUCCESS").touch()
    return 'path = "t.parquet"\n' + DATES


def comma(folder: Path) -> str:
    """Numbers of a type of numbers, under a profile with decimal commas."""
    pq.write_table(pa.Table.from_pylist(PATIENTS), folder / "t.pq")
    return 'path = "t.pq"\ndecimal = ","\n' + DATES


def ndjson(folder: Path) -> str:
    lines = [json.dumps(row, default=str) for row in PATIENTS]
    (folder / "t.ndjson").write_text("\n".join(lines))
    return 'path = "t.ndjson"\n' + DATES


def cohorts(folder: Path) -> str:
    """Two files, in one of which a column is missing."""
    pytest.importorskip("duckdb")
    (folder / "a.csv").write_text(text_of([row for row in PATIENTS if row["crp"] is not None]))
    rest = [{k: v for k, v in row.items() if k != "crp"} for row in PATIENTS if row["crp"] is None]
    (folder / "b.csv").write_text(text_of(rest, ";"))
    query = "SELECT * FROM a UNION ALL BY NAME SELECT * FROM b ORDER BY patient"
    return f'query = "{query}"\n[data.tables]\na = "a.csv"\nb = "b.csv"\n' + DATES


def long(folder: Path) -> str:
    """One row a measurement."""
    pytest.importorskip("duckdb")
    rows = [
        {"patient": row["patient"], "variable": name, "value": row[name]}
        for row in PATIENTS
        for name in NAMES[1:]
        if row[name] is not None
    ]
    (folder / "t.csv").write_text(text_of(rows))
    names = ", ".join(f"'{name}'" for name in NAMES[1:])
    query = f"PIVOT t ON variable IN ({names}) USING first(value) GROUP BY patient ORDER BY patient"
    return f'query = "{query}"\n[data.tables]\nt = "t.csv"\n' + DATES


def omop(folder: Path) -> str:
    pytest.importorskip("duckdb")
    person, measured, condition = list[Row](), list[Row](), list[Row]()
    for number, row in enumerate(PATIENTS):
        person.append({
            "person_id": number, "gender": {"F": 8532, "M": 8507}[row["sex"]], "age": row["age"],
            "source": row["patient"], "smoker": row["smoker"], "seen": row["seen"],
        })  # fmt: skip
        for concept, name in ((3027114, "chol"), (3020460, "crp")):
            if row[name] is not None:
                measured.append({"person_id": number, "concept": concept, "value": row[name]})
        if row["dx"]:
            condition.append({"person_id": number, "concept": 316139})
    for name, rows in (("person", person), ("measurement", measured), ("condition", condition)):
        (folder / f"{name}.csv").write_text(text_of(rows))
    return (
        '''query = """
SELECT p.source AS patient, any_value(p.age) AS age,
  CASE any_value(p.gender) WHEN '8532' THEN 'F' ELSE 'M' END AS sex,
  max(m.value::DOUBLE) FILTER (m.concept = '3027114') AS chol,
  max(m.value::DOUBLE) FILTER (m.concept = '3020460') AS crp,
  any_value(p.smoker) AS smoker, any_value(p.seen) AS seen,
  bool_or(c.concept IS NOT NULL)::INT AS dx
FROM person p LEFT JOIN measurement m USING (person_id) LEFT JOIN condition c USING (person_id)
GROUP BY p.source ORDER BY p.source"""
[data.tables]
person = { path = "person.csv", id = "person_id" }
measurement = { path = "measurement.csv", id = "person_id" }
condition = { path = "condition.csv", id = "person_id" }
'''
        + DATES
    )


def fhir(folder: Path) -> str:
    pytest.importorskip("duckdb")
    resources: dict[str, list[Row]] = {"Patient": [], "Observation": [], "Condition": []}
    for number, row in enumerate(PATIENTS):
        subject = {"reference": f"Patient/u{number}"}
        resources["Patient"].append({
            "id": f"u{number}", "identifier": [{"system": "urn:mrn", "value": row["patient"]}],
            "gender": {"F": "female", "M": "male"}[row["sex"]], "age": row["age"],
            "smoker": row["smoker"], "seen": str(row["seen"]),
        })  # fmt: skip
        for code, name in (("2093-3", "chol"), ("1988-5", "crp")):
            if row[name] is not None:
                resources["Observation"].append({
                    "subject": subject, "code": {"coding": [{"code": code}]},
                    "valueQuantity": {"value": row[name]},
                })  # fmt: skip
        if row["dx"]:
            resources["Condition"].append({"subject": subject, "code": "I50"})
    for name, rows in resources.items():
        (folder / f"{name}.ndjson").write_text("\n".join(map(json.dumps, rows)))
    return (
        '''query = """
SELECT any_value(p.json ->> '$.identifier[0].value') AS patient,
  any_value(p.json ->> '$.age') AS age, any_value(p.json ->> '$.gender') AS sex,
  max(TRY_CAST(o.json ->> '$.valueQuantity.value' AS DOUBLE))
    FILTER ((o.json ->> '$.code.coding[0].code') = '2093-3') AS chol,
  max(TRY_CAST(o.json ->> '$.valueQuantity.value' AS DOUBLE))
    FILTER ((o.json ->> '$.code.coding[0].code') = '1988-5') AS crp,
  any_value(p.json ->> '$.smoker') AS smoker, any_value(p.json ->> '$.seen') AS seen,
  bool_or(c.json IS NOT NULL)::INT AS dx
FROM Patient p
  LEFT JOIN Observation o ON (o.json ->> '$.subject.reference') = 'Patient/' || (p.json ->> '$.id')
  LEFT JOIN Condition c ON (c.json ->> '$.subject.reference') = 'Patient/' || (p.json ->> '$.id')
GROUP BY p.json ->> '$.id' ORDER BY p.json ->> '$.id'"""
[data.tables]
Patient = { path = "Patient.ndjson", id = "'Patient/' || (json ->> '$.id')" }
Observation = { path = "Observation.ndjson", id = "json ->> '$.subject.reference'" }
Condition = { path = "Condition.ndjson", id = "json ->> '$.subject.reference'" }
'''
        + DATES
    )


def redcap(folder: Path) -> str:
    """Two events of a person in two rows, each with other columns."""
    pytest.importorskip("duckdb")
    rows = list[Row]()
    for row in PATIENTS:
        first = {name: row[name] if name in ("age", "sex", "smoker") else None for name in NAMES}
        later = {name: None if name in ("age", "sex", "smoker") else row[name] for name in NAMES}
        for event, part in (("baseline", first), ("month_6", later)):
            rows.append({**part, "patient": row["patient"], "event": event})
    (folder / "r.csv").write_text(text_of(rows))
    query = (
        "SELECT b.patient, b.age, b.sex, f.chol, f.crp, b.smoker, f.seen, f.dx FROM r b JOIN r f "
        "USING (patient) WHERE b.event = 'baseline' AND f.event = 'month_6' ORDER BY b.patient"
    )
    return f'query = "{query}"\n[data.tables]\nr = "r.csv"\n' + DATES


KINDS: tuple[Callable[[Path], str], ...] = (
    zipped, gzipped, excel, spss, stata, sas, sqlite, parquet_parts, comma, ndjson, cohorts, long,
    omop, fhir, redcap,
)  # fmt: skip
PROFILE = """
[budget]
epsilon = 8.0
delta = 1e-4
[run]
epsilon = 2.0
delta = 1e-5
[training]
batch-size = 16
declared-records = 100
[ledger]
path = "ledger.sqlite"
[data]
id = "patient"
holdout = 0.25
{data}"""


def written(folder: Path, data: str) -> Path:
    """Write a profile with ``data``."""
    path = folder / "profile.toml"
    path.write_text(PROFILE.format(data=data))
    path.chmod(0o600)
    return path


def imported(folder: Path, data: str) -> SiteData:
    """Return the records of a profile's frozen table, imported if there is none."""
    from hdpfl_tools.tables.frozen_table import import_table

    path = written(folder, data)
    source = Profile.load(path).data
    assert source is not None
    import_table(source, folder / "ledger.sqlite")
    source = load_profile(path).data
    assert source is not None and source.place[1] == "frozen"
    return read_site_data(source, Schema.parse(SCHEMA).task, SCHEMA)


def by_id(data: SiteData) -> list[dict[bytes, tuple[bytes, float]]]:
    """Return the features and label of each id, of training and of the holdout."""
    groups = ((data.train, data.ids), (data.test, data.test_ids))
    return [
        {
            unit: (features.tobytes(), float(target))
            for unit, features, target in zip(ids, records.features, records.targets, strict=True)
        }
        for records, ids in groups
        if records is not None and ids is not None
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_format_gives_the_features_of_the_plain_csv(
    tmp_path: Path, kind: Callable[[Path], str]
) -> None:
    folders = [tmp_path / "plain", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    expected = by_id(imported(folders[0], plain(folders[0])))
    assert sum(map(len, expected)) == 120
    assert by_id(imported(folders[1], kind(folders[1]))) == expected
    assert min(map(len, expected)) > 10


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Start PostgreSQL, as another user than root, and yield its socket's folder."""
    initdb = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)
    if initdb is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    user = "nobody" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    data = folder / "data"
    made = [initdb, "-D", data, "-U", "lab", "-A", "trust", "-N"]
    subprocess.run(made, check=True, user=user, cwd=folder, capture_output=True)
    options = [
        "-c",
        "listen_addresses=",
        "-c",
        f"unix_socket_directories={folder}",
        "-c",
        "fsync=off",
    ]
    process = subprocess.Popen(
        [initdb.parent / "postgres", "-D", data, *options], user=user, cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(100):
            if (folder / ".s.PGSQL.5432").exists():
                break
            time.sleep(0.1)
        yield str(folder)
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder)


def test_postgresql_gives_the_features_of_the_plain_csv(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    place = f"host={server} dbname=postgres user=lab"
    for attempt in range(50):
        try:
            connection = psycopg.connect(place)
            break
        except psycopg.OperationalError:
            time.sleep(0.1 * (attempt < 49))
    with connection:
        connection.execute(
            "CREATE TABLE t (patient text, age int, sex char(1), chol numeric, crp float8, "
            "smoker text, seen date, dx smallint)"
        )
        rows = [[*row.values()] for row in PATIENTS]
        connection.cursor().executemany("INSERT INTO t VALUES (%s,%s,%s,%s,%s,%s,%s,%s)", rows)
    folders = [tmp_path / "plain", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    expected = by_id(imported(folders[0], plain(folders[0])))
    monkeypatch.setenv("HDPFL_TEST_LAB", place)
    for where in ("$HDPFL_TEST_LAB", place):
        data = f'connection = "{where}"\nselect = "SELECT * FROM t ORDER BY patient"\n{DATES}'
        assert by_id(imported(folders[1], data)) == expected
    with pytest.raises(DataError, match="PostgreSQL"):
        data = f'connection = "{place}"\nselect = "DELETE FROM t RETURNING *"\n{DATES}'
        imported(folders[1], data)
    assert by_id(imported(folders[1], data.replace("DELETE FROM t RETURNING *", "SELECT * FROM t")))
