"""A rehearsal over profiles in one process: real ledgers, real approvals, no simulated site."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.monitoring.journal import Event, read_journal
from hdpfl_tools.coordinator.reports.run_page import command_of
from hdpfl_tools.simulation.in_process.profile_grid import ProfileGrid
from hdpfl_tools.site.commands import app
from server_app.run.rounds import RunResult, run
from tests.client_app.messages import config_of, make_site


def rehearse(folder: Path, profiles: dict[str, Path]) -> RunResult:
    own = {"runs-dir": str(folder), "join-timeout": 0.5, "min-sites": 2}
    terms = config_of(rounds=1, strategy="fedavg", **own)
    grid = ProfileGrid(profiles)
    try:
        return run(grid, terms)
    finally:
        grid.close()


def starts(folder: Path) -> list[Event]:
    events = read_journal(folder / "run-1" / "journal.jsonl")
    return [event for event in events if event["event"] == "run-started"]


def test_a_run_waits_for_the_operator_and_then_charges_the_sites_ledger(tmp_path: Path) -> None:
    profiles = {name: make_site(tmp_path / name) for name in ("north", "south")}
    text = profiles["south"].read_text()
    profiles["south"].write_text(text.replace('approval = "standing"\n', ""))
    with pytest.raises(StrategyError, match="pending: south"):
        rehearse(tmp_path, profiles)
    done = CliRunner().invoke(app, ["approve", "1", "--yes", "--profile", str(profiles["south"])])
    assert done.exit_code == 0, done.output
    result = rehearse(tmp_path, profiles)
    assert result.rounds[-1]["accepted"] == ["north", "south"]
    for profile in profiles.values():
        shown = CliRunner().invoke(app, ["ledger", "--profile", str(profile)])
        assert "run-1" in shown.output
    (*_, last) = starts(tmp_path)
    assert last["engine"] == "rehearsal"
    assert command_of({}, result.rounds, [last]) == "flwr run . SUPERLINK --stream"


def test_no_site_of_a_profile_is_simulated(tmp_path: Path) -> None:
    """Without records and a ledger a site declines, as a deployed one does."""
    profiles = {name: make_site(tmp_path / name) for name in ("north", "south")}
    text = profiles["south"].read_text()
    profiles["south"].write_text(text.partition("[ledger]")[0])
    assert Profile.load(profiles["south"]).ledger is None
    with pytest.raises(StrategyError, match=r"quorum|joined"):
        rehearse(tmp_path, profiles)
