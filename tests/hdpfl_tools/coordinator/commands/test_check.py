"""``hdpfl check RUN.toml`` names key and remedy of what ``flwr run`` refuses as '[code: 15]'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import HDPFLError
from hdpfl_tools.coordinator.commands import app
from tests.hdpfl_tools.site.commands.conftest import SCHEMA

ROOT = Path(__file__).parents[4]
GOOD = 'strategy = "fedavg"\nrounds = 2\n'


def said(path: Path, text: str, *words: str | Path) -> str:
    """Return what the command prints of a run config, or the error that it ends with."""
    path.write_text(text)
    result = CliRunner().invoke(app, ["check", str(path), *map(str, words)])
    if isinstance(result.exception, HDPFLError):
        return f"error: {result.exception}"
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


@pytest.mark.parametrize(
    "text", [GOOD, 'resume-from = "r"\n', 'strategy = "r-dpcfl"\n[r-dpcfl]\nclusters = 2\n']
)
def test_what_flwr_run_takes_passes(run: Path, text: str) -> None:
    assert said(run, text, "--app", ROOT).startswith("ok ")
    assert json.loads(said(run, text, "--app", ROOT, "--json")) == {str(run): ""}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("roundz = 2\n", "'roundz' is not a known key; did you mean 'rounds'?"),
        ("[r-dpcfl]\nclustres = 2\n", "'r-dpcfl.clustres' is not a key of the run config; did you "
         "mean 'r-dpcfl.clusters'?"),
        ("[my-own]\nzz-quux-9 = 2\n", "'my-own.zz-quux-9' is not a key of the run config; declare "
         "it, with its default, under [tool.flwr.app.config] in"),
        ('rounds = "two"\n', "'rounds'"),
        ('strategy = "no-such"\n', "'no-such'"),
        ('noise = "server"\n', "and 'mmse' adds no noise; take "),
    ],
)  # fmt: skip
def test_what_would_be_refused_is_named(run: Path, text: str, words: str) -> None:
    found = said(run, text, "--app", ROOT)
    assert found.startswith("error: ")
    assert words in found


def test_a_run_config_is_written_as_one_file_for_flwr_run(run: Path, tmp_path: Path) -> None:
    """Its terms are the same wherever it lies; without it, a note names the path."""
    (tmp_path / "s.toml").write_text(SCHEMA)
    text = 'schema = "s.toml"\ndataset = "site"\n[after.scores]\nshare = 0.2\n'
    assert "'schema' is a path from the folder of this file" in said(run, text, "--app", ROOT)
    sent = tmp_path / "other" / "sent.toml"
    sent.parent.mkdir()
    assert "note" not in said(run, text, "--app", ROOT, "--to", sent)
    assert RunConfig.load(sent).terms == RunConfig.load(run).terms
    assert "note" not in said(sent, sent.read_text(), "--app", ROOT)


def test_a_strategy_is_no_file_to_write(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["check", "fedavg", "--to", str(tmp_path / "a.toml")])
    assert "--to is only for a run config" in str(result.exception)
