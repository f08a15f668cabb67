"""``hdpfl-site schema``: from a messy export to a site that is ready, step by step."""

from __future__ import annotations

EXPORT = "PatNr;geboren;Aufnahme;Geschlecht;Chol;Größer Eingriff;Bemerkung\r\n" + "\r\n".join(
    f"{i + 1};{13 + i % 15}.03.19{30 + i};01.02.2024 08:00;{'mwd'[i % 3]};{4 + i // 10},{i % 10};"
    f"{'ja' if i % 2 else 'nein'};PATIENT-123 {i}"
    for i in range(40)
)
CHOSEN = """
id = "patient"
[label]
column = "surgery"
classes = [["no"], ["yes"]]
[[columns]]
name = "age"
type = "number"
bounds = [18, 100]
[[columns]]
name = "sex"
type = "category"
categories = [["f", "female"], ["m", "male"]]
[[columns]]
name = "chol"
aliases = ["Chol", "Cholesterin"]
type = "number"
bounds = [100, 400]
"""
DATA = """
id = "patient"
encoding = "latin-1"
[data.columns.patient]
name = "PatNr"
[data.columns.age]
name = "geboren"
to = "age"
date-formats = ["%d.%m.%Y", "%d.%m.%Y %H:%M"]
reference = "Aufnahme"
[data.columns.sex]
name = "Geschlecht"
[data.columns.surgery]
name = "Größer Eingriff"
"""
REST = """
values = { ja = "yes", nein = "no" }
[data.columns.chol]
factor = 38.67
"""


def given(site, more: str) -> None:
    """Write the profile with ``more`` below its ``[data]``."""
    site.write_profile(
        ('format = "csv"\npath = "records.csv"', f'format = "csv"\npath = "records.csv"{more}')
    )


def test_from_a_messy_export_to_a_site_that_is_ready(opened) -> None:
    records = opened.folder / "records.csv"
    records.write_bytes(EXPORT.encode("latin-1"))
    out = opened.folder / "surgery.toml"
    drafted = opened.bare(
        "schema", records, "--out", out, "--label", "Größer Eingriff", "--id", "PatNr"
    )
    assert drafted.code == 0, drafted
    assert "never from the lines above" in drafted.out
    assert "'Geschlecht': category, 40 of 40 hold something: 'm' 14" in drafted.out
    assert 'decimal = ","' in drafted.out
    text = out.read_text()
    assert not any(each in text for each in ("PATIENT", "nein", "ja", "1930", '"m"', "4,0"))
    assert "'label.classes'" in opened.bare("schema", out).error()
    assert "exists already" in opened.bare("schema", records, "--out", out).error()
    # Drafted terms are refused wherever they are used, before a record is read.
    terms = opened.terms_path
    terms.write_text('run-id = "run-1"\ndataset = "site"\nschema = "surgery.toml"\nrounds = 3\n')
    assert "still to be chosen: 'label.classes'" in opened("plan", "--terms", terms).error()
    out.write_text(CHOSEN)
    checked = opened.bare("schema", out)
    assert checked.code == 0
    assert "3 columns, 4 features; the label 'surgery' is 2 classes" in checked.out
    assert "protected unit: all records with one value of 'patient'" in checked.out
    given(opened, DATA)
    result = opened("profile", "check", "--terms", terms)
    assert result.code == 1
    assert (
        "'sex': 26 of 40 cells that hold something cannot be read: 'w' 13 times; 'd' 13"
        in result.out
    )
    assert "'nein' 20 times; 'ja' 20 times" in result.out
    assert "ok       data: column 'sex'" not in result.out
    assert "PATIENT-123" not in result.out
    missing = DATA.replace(
        'name = "Geschlecht"', 'name = "Geschlecht"\nmissing = ["d"]\nvalues = { w = "f" }'
    )
    given(opened, missing.replace('id = "patient"', 'id = "patient"\ndecimal = ","') + REST)
    result = opened("profile", "check", "--terms", terms)
    assert result.code == 0, result.out
    assert "data: records: 40 found, 40 for training" in result.out
