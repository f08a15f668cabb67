"""``hdpfl-site withdraw``: what is noted, what is said, and what is never printed or stored."""

from __future__ import annotations

import json
import re

import pytest

from tests.hdpfl_tools.site.commands.conftest import SCHEMA

IDS = ("alice-1", "bob-2")


@pytest.fixture
def patients(opened):
    """A site with ids, and a ledger."""
    opened.write_profile(('path = "records.csv"', 'path = "records.csv"\nid = "pid"'))
    rows = [f"alice-{i},{i % 2},{i % 10},x" for i in range(40)] + ["bob-2,1,3,x", "ALICE-3,1,3,x"]
    (opened.folder / "records.csv").write_text("\n".join(["pid,y,a,c", *rows]) + "\n")
    opened.write_terms(schema=f'id = "pid"\n{SCHEMA}')
    return opened


def test_no_id_is_printed_or_stored(patients) -> None:
    result = patients("withdraw", *IDS, "carol-9")
    assert result.code == 0
    assert "noted: 3 withdrawals; 0 were noted before\nin the records: 2 of 3" in result.out
    assert "in no record: number 3 of the ids that you gave. Is it a typing error?" in result.out
    assert "3 units (2" in result.out and "nothing was released before" in result.out
    shown = [
        patients(*words).out
        for words in (("withdraw",), ("ledger",), ("report",), ("report", "--json"))
    ]
    assert "3 units (2" in shown[0] and "3 units (2" in " ".join(shown[2].split())
    assert sum(json.loads(shown[3])["withdrawn"].values()) == 3
    stored = b"".join(f.read_bytes() for f in patients.ledger_path.parent.iterdir() if f.is_file())
    for unit in (*IDS, "carol-9"):
        assert unit not in result.out + result.err + "".join(shown)
        assert unit.encode() not in stored


def test_ids_from_standard_input(patients) -> None:
    result = patients("withdraw", "-", answer="\ufeffalice-1\r\n\n  bob-2 \nalice-1\n")
    assert "noted: 2 withdrawals" in result.out and "in the records: 2 of 2" in result.out
    assert "noted: 0 withdrawals; 1 were noted before" in patients("withdraw", "bob-2").out
    assert "give no id beside it" in patients("withdraw", "-", "x").error()
    assert "an id is empty; nothing was noted" in patients("withdraw", "-", answer="\n").error()
    assert "an id is empty" in patients("withdraw", "alice-2", " ").error()
    assert "alice" not in patients("withdraw", "alice-2", " ").err


def test_a_check_says_how_many_are_left_out(patients) -> None:
    patients("withdraw", *IDS)
    out = patients("profile", "check", "--terms", patients.terms_path).out
    assert "withdrawals: 2; no record of these units is read" in out
    assert "withdrawn: 2 units are left out, with all their records" in out
    assert "records: 40 found" in out
    (patients.ledger_path.parent / f"{patients.ledger_path.name}.withdrawal-key").unlink()
    result = patients("profile", "check", "--terms", patients.terms_path)
    assert result.code == 1 and "is missing or is another key" in result.out
    assert "is missing or is another key" in patients("withdraw", "alice-9").error()
    assert "needs the ids of all these units" in patients("withdraw", "--renew", "bob-2").error()
    assert patients("withdraw", "--renew", *IDS).code == 0
    assert patients("profile", "check", "--terms", patients.terms_path).code == 0


def test_another_spelling_in_the_records_is_said(patients) -> None:
    out = patients("withdraw", "alice-3").out
    assert "1 other ids of the records differ from these ids only in spelling" in out
    assert "ALICE" not in out


def test_what_was_released_before_is_listed_and_bounded(patients) -> None:
    patients.charge("run-1")
    out = patients("withdraw", "alice-1").out
    patients.charge("run-2")
    for text in (out, patients("withdraw").out):
        said = " ".join(text.split())
        assert "run-1" in text and "run-2" not in text
        assert "records do not change" in said and "(ε, δ)-differentially private" in said
        assert re.search(r"run-1 +\d{4}-\d\d-\d\d +mmse", text)


def test_an_undo_is_noted_too(patients) -> None:
    patients("withdraw", *IDS)
    assert "taken back: 1 withdrawals" in patients("withdraw", "--undo", "bob-2", "x").out
    assert "1 unit (2" in patients("withdraw").out
    assert "name the ids" in patients("withdraw", "--undo").error()
    assert patients("withdraw", "--undo", "alice-1").code == 0
    assert "no consent has been withdrawn" in patients("withdraw").out


def test_records_without_ids_name_the_key_and_the_remedy(opened) -> None:
    error = opened("withdraw", "alice-1").error()
    assert "'data.id' is empty" in error and "remove the person's records from the export" in error


def test_records_that_cannot_be_read_keep_no_person_in(patients) -> None:
    (patients.folder / "records.csv").unlink()
    result = patients("withdraw", "alice-1")
    assert result.code == 0
    assert "noted: 1 withdrawals" in result.out and "is not known" in result.out
