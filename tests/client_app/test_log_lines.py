"""No text of a server's writes a line of its own into a site's log, its errors or its reports."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from hdpfl_flower import server_wire, wire
from hdpfl_flower.config import terms as terms_module
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.system.printable import site_log
from tests.client_app.messages import SCHEMA, make_site, model_of, send, terms_of

ROOT = Path(__file__).parents[2]
FORGED = "declined: budget: all is well"
EVIL = f"x\n{FORGED}\r\x1b[2J\u202e\u2028"
TEXTS = [name for name, info in RunTerms.model_fields.items() if info.annotation is str]
"""Every term that is any text."""


@pytest.fixture(autouse=True)
def any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take texts of any characters, as older ledgers hold them: what is shown rests on no limit."""
    monkeypatch.setattr(terms_module._one_line, "__code__", (lambda value: value).__code__)


def instructions(text: str, server_round: int = 1) -> RecordDict:
    """Return a message whose terms are ``text``, as the wire has it."""
    return RecordDict(
        {
            "instructions": ConfigRecord({"format": 1, "terms": text, "round": server_round}),
            "model": model_of(terms_of()),
        }
    )


def evil_messages() -> dict[str, RecordDict]:
    """Return messages that hold ``EVIL`` in every place that can hold a text."""
    config = terms_of().as_config()
    keys = {name: RunTerms.model_fields[name].alias or name.replace("_", "-") for name in TEXTS}
    found = {f"{name} = …": instructions(json.dumps(config | {keys[name]: EVIL})) for name in TEXTS}
    found |= {
        f"{key} = … by type": instructions(json.dumps(config | {key: EVIL}))
        for key in ("rounds", "noise", "clip-norm", "work")
    }
    schemas = {
        "no TOML": EVIL,
        "column": SCHEMA.replace('"age"', json.dumps(EVIL)),
        "type": SCHEMA.replace('"number"', json.dumps(EVIL), 1),
        "key": SCHEMA.replace("bounds =", f"{json.dumps(EVIL)} ="),
        "still to be chosen": f'{SCHEMA}\n[{json.dumps(EVIL)}]\n{json.dumps(EVIL)} = "<choose>"',
        "id": f"id = {json.dumps(EVIL)}\n{SCHEMA}",
    }
    found |= {
        f"schema: {name}": instructions(json.dumps(config | {"schema": text}))
        for name, text in schemas.items()
    }
    found["an unknown key"] = instructions(json.dumps(config | {EVIL: 1}))
    found["no JSON"] = instructions(EVIL)
    found["a record's name"] = RecordDict({EVIL: ConfigRecord({EVIL: EVIL})})
    (*_, array) = model_of(terms_of()).values()
    found["an array's name"] = server_wire.write_instructions(
        terms_of(), 1, ArrayRecord({EVIL: array})
    )
    return found


MESSAGES = evil_messages()


@pytest.mark.parametrize("name", MESSAGES)
def test_log_records_are_lines(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    profile = make_site(tmp_path)
    for kind in (wire.TRAIN, wire.FINISH):
        send({"profile": str(profile)}, kind, MESSAGES[name])
    check(caplog)


def check(caplog: pytest.LogCaptureFixture) -> None:
    for record in caplog.records:
        if record.name == "hdpfl.site":
            assert record.getMessage().isprintable(), record.getMessage()
    assert FORGED not in caplog.text.splitlines()


def test_the_texts_reach_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else the test above would show nothing."""
    node = {"profile": str(make_site(tmp_path))}
    reached = set()
    for name, message in MESSAGES.items():
        caplog.clear()
        send(node, wire.TRAIN, message)
        if FORGED in caplog.text:
            reached.add(name)
    assert reached >= {"an unknown key", "schema: key"}


def test_a_text_that_nothing_escaped_before_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    site_log().warning("the server says %s", f"a\r\n{FORGED}\x1b[2K")
    (record,) = caplog.records
    check(caplog)
    assert record.getMessage().startswith("the server says a")


SERVERS_OWN = ("influence", "noise_aware", "update_matrix")
"""Modules that log at the server, from where no site calls them."""


def test_nobody_else_opens_the_sites_log() -> None:
    """``site_log`` alone puts the filter in its way."""
    files = [
        p
        for package in ("hdpfl_flower", "client_app", "hdpfl_tools/site", "hdpfl_tools/tables")
        for p in (ROOT / package).rglob("*.py")
    ]
    opened = [
        (path.name, ast.unparse(node.args[0]))
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"
    ]
    server = [(f"{name}.py", "'hdpfl.server'") for name in SERVERS_OWN]
    assert sorted(opened) == sorted([*server, ("printable.py", "_SITE")])


def run_tool(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    from hdpfl_tools.site.commands import main

    monkeypatch.setattr("sys.argv", ["hdpfl-site", *map(str, words)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_key_of_the_run_config_writes_no_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other text of a server's reaches a report: the terms are printable."""
    profile = make_site(tmp_path)
    write(tmp_path / "wrong.toml", terms_of().as_config() | {EVIL: 1})
    monkeypatch.chdir(tmp_path)
    run_tool(monkeypatch, "plan", "--terms", "wrong.toml", "--profile", profile)
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert FORGED in text, "it is shown"
    for line in text.split("\n"):
        assert line.isprintable(), line
        assert not line.strip().startswith("declined")


def write(path: Path, config: dict[str, Any]) -> None:
    path.write_text("".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in config.items()))
