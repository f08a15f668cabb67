"""``hdpfl advise`` prints a proposal that a run config takes, and names a wrong option."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.coordinator.commands import app

ROOT = Path(__file__).parents[4]
RUN = (
    'dataset = "site"\nmodel = "mlp:32"\n'
    'task.kind = "classification"\ntask.shape = 20\ntask.classes = 3\n'
)
SITES = ("--sites", "5", "--records", "600×4,80", "--epsilons", "0.5×4,8")


def said(tmp_path: Path, *words: str, run: str = RUN) -> str:
    path = tmp_path / "run.toml"
    path.write_text(run)
    result = CliRunner().invoke(app, ["advise", str(path), *words])
    return f"error: {result.exception}" if result.exception else result.output


@pytest.mark.usefixtures("guessed_noise")
def test_the_lines_are_a_run_config(tmp_path: Path) -> None:
    text = said(tmp_path, *SITES, "--most-rounds", "25")
    lines = text[text.index("# lines for the run config") :]
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


@pytest.mark.slow
def test_a_first_message_takes_the_place_of_typed_numbers(tmp_path: Path) -> None:
    """The first message of four hospitals at ε 8: about 736 records, 55 % with the disease."""
    heart = (
        f'dataset = "heart"\ndata-dir = "{ROOT / "deploy" / "demo"}"\npartition = "natural"\n'
        f'epsilons = "8"\nruns-dir = "{tmp_path}"\nrun-id = "first"\n'
    )
    (tmp_path / "first.toml").write_text(heart)
    done = CliRunner().invoke(app, ["statistics", str(tmp_path / "first.toml"), "--by-label"])
    assert not done.exception, done.output
    plain = 'dataset = "heart"\nfirst.moments.alone = true\nfirst.moments.content = "table"\n'
    options = ("--epsilons", "1", "--most-rounds", "4")
    text = said(tmp_path, "--first", str(tmp_path / "first"), *options, run=plain)
    assert "# expected accuracy: " in text
    assert "a constant answer is right for 5" in text and "noise = 'shared'" in text
    options = ("--epsilons", "1", "--most-rounds", "4", "--json")
    proposed = json.loads(said(tmp_path, "--first", str(tmp_path / "first"), *options, run=plain))[
        "proposed"
    ]
    # Chest pain alone tells .76; runs on the real records reach .8.
    assert 0.6 < proposed["accuracy"]["least"] < 0.8 < proposed["accuracy"]["most"] < 0.97
    batches = proposed["batch-sizes"]
    assert len(batches) == 4 and 150 < sum(batches) < 220  # a quarter of the records
    assert "give --sites and --records" in said(tmp_path, "--epsilons", "1", run=plain)
