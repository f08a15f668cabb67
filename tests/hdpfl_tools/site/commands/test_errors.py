"""Whatever is wrong: one line, status 1, no traceback, no private value."""

from __future__ import annotations

import shutil

import pytest

COMMANDS = [("profile", "check"), ("ledger",), ("ledger", "--init"), ("report",), ("model", "show")]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_profile_is_named(site, command) -> None:
    error = site.bare(*command).error()
    assert "--profile" in error
    assert "HDPFL_PROFILE" in error


def test_a_profile_that_others_can_read(site) -> None:
    site.profile_path.chmod(0o640)
    assert "chmod 600" in site("profile", "check").error()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("batch-size = 10\n", "", "'training.batch-size' is missing"),
        ("batch-size = 10", "batch-sise = 10", "did you mean 'training.batch-size'?"),
        ("epsilon = 1.2345678", "epsilon = 'PATIENT-123'", "'run.epsilon' must be a number"),
        ("epsilon = 4.0", "epsilon = 1.0", "[run] asks for more than [budget] holds"),
        ("[budget]", "[budget", "not valid TOML"),
    ],
)
def test_a_wrong_profile(site, old: str, new: str, words: str) -> None:
    site.write_profile((old, new))
    assert words in site("profile", "check").error()


@pytest.mark.parametrize("command", [(), ("--raise-cap", "--yes")])
def test_no_ledger(site, command) -> None:
    assert "hdpfl-site ledger --init" in site("ledger", *command).error()
    assert not site.ledger_path.exists()


def test_a_ledger_that_exists_is_not_overwritten(opened) -> None:
    before = opened.ledger_path.read_bytes()
    assert "created only once" in opened("ledger", "--init").error()
    assert opened.ledger_path.read_bytes() == before


@pytest.mark.parametrize("command", [("ledger",), ("report",)])
def test_a_ledger_with_a_changed_byte(opened, command) -> None:
    opened.charge()
    data = opened.ledger_path.read_bytes()
    place = data.index(b'"epsilon": 1.2345678') + len(b'"epsilon": ')
    opened.ledger_path.write_bytes(data[:place] + b"0" + data[place + 1 :])
    assert "damaged" in opened(*command).error()


def test_an_older_ledger_put_back(opened) -> None:
    shutil.copy(opened.ledger_path, opened.folder / "copy")
    opened.charge()
    for rest in opened.ledger_path.parent.glob("ledger.sqlite-*"):
        rest.unlink()
    shutil.copy(opened.folder / "copy", opened.ledger_path)
    for command in (("ledger",), ("report",), ("profile", "check")):
        result = opened(*command)
        assert result.code == 1
        assert "older than its anchor" in result.err + result.out


def test_a_deleted_ledger_is_not_begun_anew_beside_its_anchor(opened) -> None:
    shutil.rmtree(opened.ledger_path.parent)
    assert "restore that ledger" in opened("ledger", "--init").error()
