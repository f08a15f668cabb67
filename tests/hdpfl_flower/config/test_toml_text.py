"""No TOML that a coordinator wrote costs more than its size: run configs, and apps' projects."""

from __future__ import annotations

import tomllib
import tracemalloc
from pathlib import Path

import pytest

from client_app.approval.fab import read_bundle
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import MOST_TERMS
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.errors import DeploymentError, TermsError
from tests.client_app.commands.fabs import MODULE, pack, pyproject

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
            with pytest.raises(DeploymentError, match="is no app of Flower's"):
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
