"""A run's test: pooled, and for each simulated site on records like its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.coordinator.reports.comparison_tables import tables
from hdpfl_tools.simulation.in_process.comparison import Comparison
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process


def terms_of(folder: Path, **more: object) -> RunConfig:
    return RunConfig.parse({
        "dataset": "digits", "partition": "pathological:2", "rounds": 3, "learning-rate": 0.5,
        "epsilons": "inf", "runs-dir": str(folder), "run-id": "r", **more,
    })  # fmt: skip


def test_every_strategy_is_tested_alike_and_iid_sites_see_the_pooled_test(tmp_path: Path) -> None:
    """Shares of classes of an iid split are the pooled ones but for sampling: a few hundredths."""
    found = {}
    for strategy in ("fedavg", "robust-hdp", "local", "mr-mtl"):
        terms = terms_of(tmp_path, strategy=strategy, partition="iid", **{"run-id": strategy})
        found[strategy] = run_in_process(terms, 4).rounds
    for rounds in found.values():
        metrics = rounds[-1]["metrics"]
        assert metrics["site-accuracy"] == pytest.approx(metrics["accuracy"], abs=0.03)
        assert metrics["site-loss"] == pytest.approx(metrics["loss"], abs=0.1)
    comparison = Comparison(
        terms_of(tmp_path, partition="iid"), 4, {(name, 1): r for name, r in found.items()}
    )
    folders = dict.fromkeys(comparison.rounds, tmp_path)
    titles = [table.title for table in tables(comparison, "t", folders)]
    assert len(titles) == 2
    assert "each on test records like its own" in titles[0]
    comparison.save(tmp_path / "c.json")
    results = json.loads((tmp_path / "c.json").read_text())["results"]
    for name in found:
        assert {"accuracy", "loss", "site-accuracy", "site-loss", "site-accuracy-worst"} <= set(
            results[name]
        )
