"""Whatever is wrong: one line, status 1, no traceback, no private value."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [
    ("profile", "check"),
    ("ledger", "show"),
    ("ledger", "init"),
    ("report",),
    ("model", "show"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_profile_is_named(site, command) -> None:
    error = site.bare(*command).error()
    assert "--profile" in error
    assert "HDPFL_PROFILE" in error


def test_the_environment_names_the_profile(site, monkeypatch) -> None:
    monkeypatch.setenv("HDPFL_PROFILE", str(site.profile_path))
    assert site.bare("ledger", "init").code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_profile_that_is_not_there(site, command) -> None:
    assert "is not there" in site(*command, "--profile", site.folder / "none.toml").error()


def test_a_folder_for_a_profile(site) -> None:
    assert "cannot be read" in site("report", "--profile", site.folder).error()


def test_a_profile_that_others_can_read(site) -> None:
    site.profile_path.chmod(0o640)
    assert "chmod 600" in site("profile", "check").error()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("batch-size = 10\n", "", "'training.batch-size' is missing"),
        ("batch-size = 10", "batch-sise = 10", "did you mean 'training.batch-size'?"),
        ("epsilon = 1.2345678", "epsilon = 0.0", "'run.epsilon'"),
        ("epsilon = 1.2345678", "epsilon = -1.2345678", "'run.epsilon'"),
        ("epsilon = 1.2345678", "epsilon = 'PATIENT-123'", "'run.epsilon' must be a number"),
        ("delta = 1e-5", "delta = 0.025", "below 1 / 'training.declared-records'"),
        ("batch-size = 10", "batch-size = 41", "lower the batch size"),
        ("epsilon = 4.0", "epsilon = 1.0", "[run] asks for more than [budget] holds"),
        ("[budget]", "[budget", "not valid TOML"),
    ],
)
def test_a_wrong_profile(site, old: str, new: str, words: str) -> None:
    site.write_profile((old, new))
    assert words in site("profile", "check").error()


@pytest.mark.parametrize("command", [("show",), ("init", "--raise-cap", "--yes")])
def test_no_ledger(site, command) -> None:
    assert "hdpfl-site ledger init" in site("ledger", *command).error()
    assert not site.ledger_path.exists()


def test_no_ledger_section(site) -> None:
    site.write_profile(
        ("[ledger]\n", ""), ('path = "ledger/ledger.sqlite"\nanchor = "anchor/ledger.anchor"\n', "")
    )
    for command in (("ledger", "show"), ("ledger", "init"), ("report",)):
        assert "[ledger] is missing" in site(*command).error()


def test_a_ledger_that_exists_is_not_overwritten(opened) -> None:
    before = opened.ledger_path.read_bytes()
    assert "created only once" in opened("ledger", "init").error()
    assert opened.ledger_path.read_bytes() == before


@pytest.mark.parametrize("command", [("ledger", "show"), ("report",)])
def test_a_ledger_with_a_changed_byte(opened, command) -> None:
    opened.charge()
    data = opened.ledger_path.read_bytes()
    place = data.index(b'"epsilon": 1.2345678') + len(b'"epsilon": ')
    opened.ledger_path.write_bytes(data[:place] + b"0" + data[place + 1 :])
    assert "damaged" in opened(*command).error()


def test_something_else_in_place_of_the_ledger(opened) -> None:
    opened.ledger_path.write_bytes(b"PATIENT-123" * 1000)
    assert "ledger" in opened("ledger", "show").error()
    opened.ledger_path.unlink()
    opened.ledger_path.mkdir()
    assert "ledger" in opened("ledger", "show").error()
    assert "ledger" in opened("ledger", "init").error()


def test_an_older_ledger_put_back(opened) -> None:
    shutil.copy(opened.ledger_path, opened.folder / "copy")
    opened.charge()
    for rest in opened.ledger_path.parent.glob("ledger.sqlite-*"):
        rest.unlink()
    shutil.copy(opened.folder / "copy", opened.ledger_path)
    for command in (("ledger", "show"), ("report",), ("profile", "check")):
        result = opened(*command)
        assert result.code == 1
        assert "older than its anchor" in result.err + result.out


def test_a_deleted_ledger_is_not_begun_anew_beside_its_anchor(opened) -> None:
    shutil.rmtree(opened.ledger_path.parent)
    assert "restore that ledger" in opened("ledger", "init").error()


def test_a_ledger_where_there_can_be_none(site) -> None:
    (site.folder / "ledger").write_text("a file where the folder should be")
    assert "ledger" in site("ledger", "init").error()


def test_an_anchor_where_there_can_be_none(site) -> None:
    (site.folder / "anchor").write_text("a file where the folder should be")
    assert "anchor" in site("ledger", "init").error()
    assert not site.ledger_path.exists(), "a ledger without its anchor could never be opened"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "are not there"),
        ("rounds = ", "not valid TOML"),
        ("round = 3", "did you mean 'rounds'?"),
        ("rounds = 'PATIENT-123'", "'rounds' must be a whole number"),
        ("[run]\nrounds = 3", "'run' is not a known key of 'rounds'"),
        (b"\xff", "cannot be read as text"),
    ],
)
def test_wrong_terms(site, text: str | bytes | None, words: str) -> None:
    site.terms_path.unlink()
    if text is not None:
        site.terms_path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for command in ("plan",), ("profile", "check"):
        assert words in site(*command, "--terms", site.terms_path).error()


def test_the_command_is_installed_and_says_what_it_can_do(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("hdpfl-site")
    shown = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert all(name in shown.stdout for name in ("profile", "plan", "ledger", "report", "model"))
    wrong = subprocess.run([command, "report"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: no profile is named")
    assert wrong.stderr.count("\n") == 1


def test_a_terminal_without_greek_letters(opened) -> None:
    command = Path(sys.executable).with_name("hdpfl-site")
    result = subprocess.run(
        [command, "ledger", "show", "--profile", opened.profile_path],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert b"cap" in result.stdout
