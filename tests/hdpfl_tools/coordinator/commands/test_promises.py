"""What ``hdpfl compare`` says of who is promised what, rule by rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.coordinator.commands.promises import promises_table, read_promises
from hdpfl_tools.simulation.in_process.comparison import RunJob, run_job

pytestmark = pytest.mark.usefixtures("guessed_noise")
EPSILONS = "inf,8,4,1"


def told_by(folder: Path, strategy: str, **more: object) -> tuple[str, list[str]]:
    """Run a round and return the table's rows, blanks made one, and the lines below it."""
    terms = RunConfig.parse({
        "strategy": strategy, "epsilons": EPSILONS, "rounds": 1, "runs-dir": str(folder),
        "run-id": "r", "delta": 1e-4, **more,
    })  # fmt: skip
    run_job(RunJob(terms, 4), lambda: None)
    table, lines = promises_table(terms, 4, read_promises({strategy: folder / "r"}))
    console = Console(width=200)
    with console.capture() as said:
        console.print(table)
    return " ".join(said.get().replace("│", " ").split()), lines


@pytest.mark.parametrize(
    ("strategy", "rows"),
    [
        ("fedhdp", ["inf 1 no privacy", "at most 8 3 differential privacy"]),
        ("dp-fedavg", ["at most 1 4 differential privacy"]),
        ("robust-hdp", ["1 to 8 3 differential privacy", "inf 1 no privacy"]),
        ("minimum", ["1 4 differential privacy"]),
        ("maximum", ["inf 4 VIOLATED for every site except the loosest"]),
        ("non-private", ["inf 4 no privacy"]),
    ],
)
def test_each_rule_tells_what_it_keeps(tmp_path: Path, strategy: str, rows: list[str]) -> None:
    said, lines = told_by(tmp_path, strategy)
    promises = said.count("no privacy") + said.count("differential") + said.count("VIOLATED")
    assert promises == len(rows)
    for row in rows:
        assert row in said
    assert lines[0].startswith("protected: one record of one client; add or remove one")
    assert lines[1].startswith("trust: the server is trusted with nothing")
    assert "protects nothing" in lines[-1]


def test_a_trusted_server_is_named_with_the_menus_levels(tmp_path: Path) -> None:
    said, lines = told_by(tmp_path, "fedhdp", noise="server", **{"fedhdp.levels": "inf,4,1"})
    for row in ("inf 1 no privacy", "4 2 differential privacy", "1 1 differential privacy"):
        assert row in said
    assert "at most" not in said
    assert lines[0].startswith("protected: one client with all of its records")
    assert lines[1].startswith("trust: the server is trusted: it sees clipped updates")


def test_an_opted_out_site_in_a_finite_level_has_a_row_of_its_own(tmp_path: Path) -> None:
    said, _ = told_by(tmp_path, "fedhdp", **{"fedhdp.levels": "4,1"})
    for row in ("at most 8 2 differential", "inf 1 no privacy", "at most 1 1 differential"):
        assert row in said


def test_a_papers_formula_promises_nothing_but_a_name(tmp_path: Path) -> None:
    _, lines = told_by(tmp_path, "fedavg", epsilons="1", calibration="robust-hdp")
    assert any("these ε are nominal" in line for line in lines)
