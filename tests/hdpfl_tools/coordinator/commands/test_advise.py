"""``hdpfl advise`` prints a proposal that a run config takes, and names a wrong option."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.coordinator.commands import app

RUN = 'dataset = "site"\ntask = "classification shape=20 classes=3"\nmodel = "mlp:32"\n'
SITES = ("--sites", "5", "--records", "600×4,80", "--epsilons", "0.5×4,8")


def said(tmp_path: Path, *words: str, run: str = RUN) -> str:
    path = tmp_path / "run.toml"
    path.write_text(run)
    result = CliRunner().invoke(app, ["advise", str(path), *words])
    return f"error: {result.exception}" if result.exception else result.output


@pytest.mark.usefixtures("guessed_noise")
def test_the_lines_are_a_run_config(tmp_path: Path) -> None:
    text = said(tmp_path, *SITES, "--most-rounds", "25")
    lines = text[text.index("# lines of the run config") :]
    config = RunConfig.parse({**tomllib.loads(RUN), **tomllib.loads(lines)})
    assert (config.terms.rounds, config.terms.local_steps) == (25, 4)
    assert config.rate_is_open
    assert config.simulation.batch_sizes == "each:150:150:150:150:20"
    assert " 1. × " in text
    # The same as JSON, with what was asked: a pass over batches of 64.
    found = json.loads(said(tmp_path, *SITES, "--most-rounds", "25", "--json"))
    assert found["asked"]["local-steps"] == [10, 10, 10, 10, 2]
    assert found["asked"]["batch-sizes"] == [64] * 5
    assert found["proposed"]["model"] == config.terms.model
    assert found["proposed"]["snr-run"] == pytest.approx(5 * found["proposed"]["snr-round"])
    assert f"× {found['helps'][0]['gain']:.2f}" in text
