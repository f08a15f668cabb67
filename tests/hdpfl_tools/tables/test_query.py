"""A site's query reaches nothing else, and lets no person change the records of another one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import DataError, ProfileError
from hdpfl_tools.tables.frozen_table import import_table, rows_of
from tests.hdpfl_tools.tables.test_imports import PATIENTS, text_of, written

pytest.importorskip("duckdb")
SECRET = "PATIENT-123"
ALL = "SELECT patient, age, crp, dx FROM t"
ESCAPES = (
    "SELECT * FROM read_csv('{folder}/outside.csv')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('{folder}/../outside.csv')",
    "SELECT * FROM '{folder}/outside.csv'",
    "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
    "SELECT * FROM read_csv('https://example.org/x.csv')",
    "SELECT * FROM glob('*')",
    "SELECT * FROM '/proc/self/environ'",
    "SELECT * FROM duckdb_secrets()",
    "SELECT getenv('HOME') AS patient",
    "SELECT * FROM sniff_csv('{folder}/outside.csv')",
    "INSTALL httpfs",
    "LOAD httpfs",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "COPY t FROM '{folder}/outside.csv'",
    "ATTACH '{folder}/z.db'",
    "EXPORT DATABASE '{folder}/out'",
    "SET enable_external_access = true",
    "SET allowed_directories = ['/']",
    "PRAGMA database_list",
    "SELECT * FROM source",
    "SELECT 1; SELECT patient FROM t",
    "CREATE TABLE x AS SELECT 1",
    "EXPLAIN SELECT * FROM t",
)


def asked(folder: Path, query: str, tables: str = 't = "t.csv"') -> list[bytes]:
    """Return the ids in the result of a query over the patients' table."""
    (folder / "t.csv").write_text(text_of(PATIENTS))
    (folder / "outside.csv").write_text(f"patient\n{SECRET}\n")
    data = f'query = """{query}"""\n[data.tables]\n{tables}\n'
    source = Profile.load(written(folder, data)).data
    assert source is not None
    rows = rows_of(source)
    place = rows.header.index("patient")
    return [cell for batch in rows.batches([place]) for cell in batch.columns[0].to_pylist()]


@pytest.mark.parametrize("query", ESCAPES)
def test_a_query_reaches_nothing_but_its_tables(tmp_path: Path, query: str) -> None:
    with pytest.raises(DataError) as caught:
        asked(tmp_path, query.format(folder=tmp_path))
    assert SECRET not in str(caught.value)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"t.csv", "outside.csv", "profile.toml"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "SELECT patient, chol::INT - avg(chol::INT) OVER () AS crp FROM t",
            "column 'crp'",
        ),
        ("SELECT patient, rank() OVER (ORDER BY age::INT) AS age FROM t", "column 'age'"),
        ("SELECT patient, age::INT / max(age::INT) OVER () AS age FROM t", "column 'age'"),
        ("SELECT patient, row_number() OVER () AS n, age FROM t ORDER BY patient", "column 'n'"),
        ("SELECT patient, age, (SELECT count(*) FROM t) AS n FROM t", "column 'n'"),
        (f"{ALL} ORDER BY patient LIMIT 50", "other units if some units are left out"),
        (f"{ALL} WHERE age::INT > (SELECT median(age::INT) FROM t)", "other units|column"),
        (f"{ALL} WHERE (SELECT count(*) FROM t) > 100", "other units"),
        ("SELECT patient, age, random() AS r FROM t", "other rows each time"),
        (f"{ALL} WHERE seen::DATE < current_date", "today's date or the time"),
        ("SELECT age, dx FROM t", "no column of the unit"),
        ("SELECT patient, age, dx AS age FROM t", "two columns with one name"),
        ("SELECT nothing FROM t", "fails in DuckDB"),
        ("SELEC patient FROM t", "cannot be parsed"),
        ("PIVOT t ON sex USING first(age) GROUP BY patient", "must be one SELECT"),
    ],
)
def test_a_query_that_breaks_the_promise_is_refused(tmp_path: Path, query: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        asked(tmp_path, query)
    assert not any(row["patient"] in str(caught.value) for row in PATIENTS)


@pytest.mark.parametrize(
    "query",
    [
        ALL,
        "SELECT patient, max(age::INT) AS age, count(*) AS n FROM t GROUP BY patient",
        "SELECT patient, age, lag(age) OVER (PARTITION BY patient ORDER BY seen) AS l FROM t",
        "SELECT DISTINCT patient, sex FROM t",
    ],
)
def test_a_query_of_rows_of_one_unit_each_is_read(tmp_path: Path, query: str) -> None:
    assert sorted(asked(tmp_path, query)) == sorted(row["patient"].encode() for row in PATIENTS)


def test_a_table_whose_unit_is_not_known_is_refused(tmp_path: Path) -> None:
    """Left whole while its units are left out elsewhere, a mean of it would look innocent."""
    draws = random.Random(3)
    lab = [{"person": row["patient"], "value": draws.random()} for row in PATIENTS]
    (tmp_path / "lab.csv").write_text(text_of(lab))
    query = "SELECT t.patient, value, (SELECT avg(value::DOUBLE) FROM lab) AS m FROM t JOIN lab "
    query += "ON t.patient = lab.person"
    with pytest.raises(DataError, match=r"data\.tables\.lab.*unit of its rows is not known"):
        asked(tmp_path, query, 't = "t.csv"\nlab = "lab.csv"')
    named = 't = "t.csv"\nlab = { path = "lab.csv", id = "person" }'
    with pytest.raises(DataError, match="column 'm'"):
        asked(tmp_path, query, named)
    with pytest.raises(DataError, match="not a column or an expression"):
        asked(tmp_path, query, named.replace('"person"', "\"read_text('/etc/passwd')\""))
    codes = 't = "t.csv"\nlab = { path = "lab.csv", id = "-" }'
    assert len(asked(tmp_path, query, codes)) == len(PATIENTS)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ('query = "SELECT 1"\n', "set one of them"),
        ('path = "a.csv"\nquery = "SELECT 1"\n[data.tables]\nt = "t.csv"\n', "set one of them"),
        ('path = "a.csv"\nconnection = "host=x"\nselect = "SELECT 1"\n', "set one of them"),
        ('connection = "host=x"\n', "needs 'select'"),
        (f'connection = "host=x password={SECRET}"\nselect = "SELECT 1"\n', "holds a password"),
        (f'connection = "postgresql://u:{SECRET}@h/d"\nselect = "SELECT 1"\n', "holds a password"),
        ('format = "csv"\npath = "a"\nskip = -1\n', "skip"),
        ('path = "a.csv"\n[data.tables.t]\npath = "b"\n', "set one of them"),
    ],
)
def test_a_profile_that_names_no_one_place_is_refused(
    tmp_path: Path, data: str, words: str
) -> None:
    with pytest.raises(ProfileError, match=words) as caught:
        Profile.load(written(tmp_path, data))
    assert SECRET not in str(caught.value)


def test_a_query_without_an_id_is_refused(tmp_path: Path) -> None:
    data = 'query = "SELECT 1"\n[data.tables]\nt = "t.csv"\n'
    path = written(tmp_path, data)
    path.write_text(path.read_text().replace('id = "patient"\n', ""))
    with pytest.raises(ProfileError, match=r"'data\.query' needs 'data\.id'"):
        Profile.load(path)


def test_a_server_that_does_not_answer_is_named_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    place = f"host=127.0.0.1 port=1 user={SECRET} connect_timeout=2"
    monkeypatch.setenv("HDPFL_TEST_LAB", place)
    for connection, words in (("$HDPFL_TEST_LAB", "PostgreSQL"), ("$HDPFL_NONE", "is not set")):
        data = f'connection = "{connection}"\nselect = "SELECT 1"\n'
        source = Profile.load(written(tmp_path, data)).data
        assert source is not None
        with pytest.raises(DataError, match=words) as caught:
            import_table(source, tmp_path / "ledger.sqlite")
        assert SECRET not in str(caught.value)
