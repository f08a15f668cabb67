"""Whole runs with noise at the server: over scripted sites, and over simulated ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error

from hdpfl_flower import wire
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from server_app.run.rounds import RunResult, run
from tests.federation import ScriptedGrid, sends

SIZE = 650


def terms_of(folder: Path, **more: Any) -> RunConfig:
    config = {
        "strategy": "fedhdp", "noise": "server", "rounds": 3, "runs-dir": str(folder),
        "run-id": "r", "min-sites": 1, "delta": 1e-3, "batch-sizes": "10", **more,
    }  # fmt: skip
    if config["strategy"] == "fedhdp":
        config.setdefault("fedhdp.level-ratio", "0.5")
    return RunConfig.parse(config)


def scripted(epsilons: dict[str, float], **sites: Any) -> ScriptedGrid:
    update = np.full(SIZE, 0.01, np.float32)
    everybody = {name: sites.get(name.replace("-", "_"), sends(update)) for name in epsilons}
    return ScriptedGrid(everybody, {name: {"epsilon": e} for name, e in epsilons.items()})


def test_a_round_in_which_nobody_answers_is_released_all_the_same(tmp_path: Path) -> None:
    gone = {f"s{i}": (lambda _: Error(wire.FAILED, "failed")) for i in range(4)}
    result = run(scripted({f"s{i}": 2.0 for i in range(4)}, **gone), terms_of(tmp_path))
    assert len(result.rounds) == 3
    weights = [event["weights"] for event in result.rounds]
    assert all(len(each) == 0 for each in weights)
    assert all(np.isfinite(array).all() and array.any() for array in result.arrays.values())


def test_the_journal_says_what_is_promised_before_the_first_round_ends(tmp_path: Path) -> None:
    run(scripted({"a": 2.0, "b": float("inf")}), terms_of(tmp_path))
    events = read_journal(tmp_path / "r" / "journal.jsonl")
    kinds = [event["event"] for event in events]
    assert kinds.index("privacy") < kinds.index("round")
    promised = events[kinds.index("privacy")]
    assert [level["promise"] for level in promised["levels"]] == [
        "no privacy", "differential privacy",
    ]  # fmt: skip
    content = json.loads((tmp_path / "r" / "result.json").read_text())
    assert content["privacy"]["noise"] == "server"


def test_declining_is_not_withholding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server sees a constant code; what its terms ask of a profile it knows itself."""
    grid = scripted({"a": 2.0, "b": 2.0, "c": 2.0})
    grid.facts = {"a": {"epsilon": 2.0}, "b": Error(wire.DECLINED, "declined"), "c": {}}
    run(grid, terms_of(tmp_path))
    left_out = {
        event["site"]: event["reason"]
        for event in read_journal(tmp_path / "r" / "journal.jsonl")
        if event["event"] == "left-out"
    }
    trust = "noise = 'server' needs 'trust-server = true' in its profile"
    assert (
        left_out["b"]
        == f"declined; the site's own log states the reason, for instance that {trust}"
    )
    assert left_out["c"].startswith("the site does not disclose epsilon; 'disclose' in its profile")
    for site, reason in left_out.items():
        assert f"site {site} is left out: {reason}" in caplog.text


def simulated(folder: Path, **more: Any) -> RunResult:
    return run_in_process(
        terms_of(folder, epsilons="4+opt-out:0.2", fraction=0.5, **more), num_sites=30
    )


@pytest.mark.usefixtures("guessed_noise")
def test_a_simulation_is_reproducible_and_its_clip_norm_reaches_the_sites(tmp_path: Path) -> None:
    one, other = (simulated(tmp_path / name) for name in ("one", "other"))
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(other.arrays[name], array)
    norms = [event["gauges"]["clip_norm"] for event in one.rounds]
    assert len(set(norms)) == len(norms)
    assert all(not event["rejected"] for event in one.rounds)
