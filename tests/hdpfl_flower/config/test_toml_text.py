"""No TOML that a coordinator wrote costs more than its size: run configs, and apps' projects."""

from __future__ import annotations

import json
import tomllib
import tracemalloc
from pathlib import Path

import pytest

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import MOST_SCHEMA, MOST_TERMS, RunTerms
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.data.schema import Schema
from hdpfl_flower.errors import DataError, DeploymentError, TermsError
from hdpfl_tools.site.approval.fab import read_bundle
from tests.hdpfl_flower.data.schema_text import TEXT
from tests.hdpfl_tools.site.commands.fabs import MODULE, pack, pyproject

LONG = {
    "a key of many parts": ".".join(["a"] * 9_000) + " = 1\n",
    "a quoted key of many parts": '."a"' * 9_000 + " = 1\n",
    "a table of many parts": "[" + ".".join(["a"] * 9_000) + "]\n",
    "brackets in brackets": "a = " + "[" * 9_000 + "]" * 9_000 + "\n",
    "tables in tables": "a = " + "{a=" * 9_000 + "1" + "}" * 9_000 + "\n",
}
PEAK = 60_000_000
"""Bytes: 50 million to read any app. A reader of TOML takes 300 million for the first text."""


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_run_config_costs_no_more_than_its_size(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    tracemalloc.start()
    with pytest.raises(TermsError, match=r"use fewer dots|close some"):
        RunConfig.load(path)
    assert tracemalloc.get_traced_memory()[1] < PEAK
    tracemalloc.stop()


@pytest.mark.parametrize("text", [*LONG.values(), "# comment\n" * 6_554], ids=[*LONG, "long"])
def test_an_app_s_project_costs_no_more_than_its_size(tmp_path: Path, text: str) -> None:
    project, path = pyproject(MODULE, "1"), tmp_path / "app.fab"
    for more, allowed in (("[x.y.z]\na.b.c = [[1.5]]\n", True), (text, False)):
        path.write_bytes(pack({"pyproject.toml": (project + "\n" + more).encode()}))
        tracemalloc.start()
        if allowed:
            assert read_bundle(path).version == "1"
        else:
            with pytest.raises(DeploymentError, match="is not a Flower app"):
                read_bundle(path)
        assert tracemalloc.get_traced_memory()[1] < PEAK
        tracemalloc.stop()


def test_a_run_config_has_as_many_bytes_as_terms(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("#" * MOST_TERMS)
    assert RunConfig.load(path) == RunConfig.parse({})
    path.write_text("#" * (MOST_TERMS + 1))
    with pytest.raises(TermsError, match=f"longer than {MOST_TERMS} bytes"):
        RunConfig.load(path)


@pytest.mark.parametrize("text", ["", 'a "b" \\ c', "\x7f", "\U0001f600 Köln", "\n\t\0", "\u2028"])
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    """Of other writers JSON's halves of a character, and DEL, are no TOML."""
    assert tomllib.loads(f"key = {as_toml(text)}\n{as_toml(text)} = 1") == {"key": text, text: 1}


# --- a schema is named by its path where a run config is read, and travels as its text alone


def test_a_run_config_holds_a_files_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "small.toml").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    (tmp_path / "conf" / "run.toml").write_text('schema = "small.toml"\n')
    (tmp_path / "small.toml").write_text("id = 'of the current folder'")
    monkeypatch.chdir(tmp_path)
    terms = RunConfig.load(Path("conf/run.toml")).terms
    assert terms.schema_text == TEXT
    assert Schema.load(terms.schema_text) == Schema.parse(TEXT)
    assert with_files({"schema": "conf/small.toml"}, Path.cwd()) == {"schema": TEXT}
    whole = {"schema": str(tmp_path / "conf/small.toml")}
    assert with_files(whole, Path("/")) == {"schema": TEXT}
    for other in ({}, {"schema": "heart"}, {"schema": TEXT}, {"schema": "a = 1 # x.toml"}):
        assert with_files(other, tmp_path) == other


def test_terms_of_a_server_open_no_file(tmp_path: Path) -> None:
    """A path in a message would let a server read a file of the site, or learn that it is there."""
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    for terms in (
        RunTerms.from_json(json.dumps({"schema": str(path)})),
        RunConfig.parse({"schema": str(path)}).terms,
    ):
        assert terms.schema_text == str(path)
        with pytest.raises(DataError, match="no built-in schema") as caught:
            Schema.load(terms.schema_text)
        assert str(path) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is not there"),
        (b"\xff\xfe=", "as a text in UTF-8"),
        (b"", "holds no key"),
        (b"#" * (MOST_SCHEMA + 1), "longer than 65536 bytes"),
    ],
)
def test_a_file_that_is_no_schema(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "s.toml").write_bytes(content)
    with pytest.raises(TermsError, match=words) as caught:
        with_files({"schema": "s.toml"}, tmp_path)
    assert "s.toml" in str(caught.value)
    with pytest.raises(TermsError, match=r"cannot be read|is not there"):
        with_files({"schema": "folder.toml/x.toml"}, tmp_path)
