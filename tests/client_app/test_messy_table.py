"""A run at a site with a messy export: the same update as of a clean table, and a silent log."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from client_app.site.site import Site
from hdpfl_flower import server_wire, wire
from hdpfl_flower.config.profile import Profile
from tests.client_app.messages import SCHEMA, ask, make_site, model_of, send, terms_of

SECRET = "PATIENT-123"
TABLE = """
format = "csv"
path = "records.csv"
encoding = "latin-1"
decimal = ","
[data.columns.age]
name = "geboren"
to = "age"
date-formats = ["%d.%m.%Y"]
reference = "2024-12-31"
[data.columns.dose]
name = "Menge (µg)"
factor = 0.001
[data.columns.sick]
name = "Größer"
values = { ja = "yes", nein = "no" }
"""


def messy_site(folder: Path, mistakes: int = 0) -> Path:
    """Write the site of :func:`make_site` with its table as another hospital exports it."""
    profile = make_site(folder)
    text = profile.read_text().replace('format = "csv"\npath = "records.csv"\nholdout = 0.0', TABLE)
    profile.write_text(text)
    lines = [
        f"1.2.{2024 - 20 - i};{i % 10}000,0;{'ja' if i % 3 else 'nein'};{SECRET}" for i in range(61)
    ]
    for i in range(mistakes):
        lines[i] = [f"{SECRET};{SECRET};ja;", f"1.2.2000;1;{SECRET};", f'"{SECRET};1;ja;'][i % 3]
    text = "\r\n".join(["geboren;Menge (µg);Größer;Name", *lines])
    (folder / "records.csv").write_bytes(text.encode("latin-1"))
    return profile


def code(reply: Message) -> int:
    return reply.error.code if reply.has_error() else 0


def test_the_records_of_a_run_are_those_of_a_clean_table(tmp_path: Path) -> None:
    clean, messy = make_site(tmp_path / "clean"), messy_site(tmp_path / "messy")
    found = [
        Site(Profile.load(profile), terms_of()).training_records() for profile in (clean, messy)
    ]
    np.testing.assert_allclose(found[1].features, found[0].features, atol=1e-6)
    np.testing.assert_array_equal(found[1].targets, found[0].targets)


@pytest.mark.parametrize("mistakes", [0, 61])
def test_no_text_is_shown(tmp_path: Path, mistakes: int, caplog: pytest.LogCaptureFixture) -> None:
    """Also where not one cell can be read: a run that stopped there would disclose a record."""
    profile = messy_site(tmp_path, mistakes)
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        reply = ask(profile, terms_of())
    assert code(reply) == 0
    shown = caplog.text + "".join(str(each.message) for each in warned) + str(reply.content)
    for private in (SECRET, "nein", "geboren", "Menge", "1.2.2000"):
        assert private not in shown


def test_drafted_schemas_are_declined(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = make_site(tmp_path)
    terms = terms_of(schema=SCHEMA.replace("[0, 10]", '["<choose>", 10]'))
    content = server_wire.write_instructions(terms, 1, model_of(terms_of()))
    with caplog.at_level(logging.DEBUG):
        reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert code(reply) in (wire.DECLINED, wire.FAILED)
    assert "still to be chosen: 'columns.dose.bounds'" in caplog.text


def test_files_in_terms_stay_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = make_site(tmp_path)
    path = tmp_path / "own.toml"
    path.write_text(SCHEMA)
    content = server_wire.write_instructions(terms_of(schema=str(path)), 1, model_of(terms_of()))
    with caplog.at_level(logging.DEBUG):
        reply = send({"profile": str(profile)}, wire.TRAIN, content)
    assert code(reply) in (wire.DECLINED, wire.FAILED)
    assert "no built-in schema" in caplog.text
