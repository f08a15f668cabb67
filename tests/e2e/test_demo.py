"""The four hospitals, from ``make up`` to ``make down``."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy import stats

from hdpfl_flower.measures.from_cells import OF_CELLS
from tests.e2e.engines import ROOT, Done, Federation, free_ports, rounds_of, toml_of

pytestmark = pytest.mark.engines

HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]
ROUNDS = 2
"""Of the six in the demo's ``run.toml``: each is four processes that import torch anew."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Done]]:
    """The demo after one run, and what ``run`` said."""
    federation = Federation(tmp_path_factory.mktemp("demo"), free_ports(5))
    try:
        started = federation.call("up")
        assert started.returncode == 0, started.stderr
        terms = toml_of(ROOT / "deploy" / "demo" / "run.toml") | {"rounds": ROUNDS}
        yield federation, federation.call("run", federation.write(terms))
    finally:
        federation.call("down")


def folder_of(federation: Federation) -> Path:
    (folder,) = (federation.home / "runs").iterdir()
    return folder


def test_the_run_completes_and_says_where_everything_lies(demo: tuple[Federation, Done]) -> None:
    federation, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(folder_of(federation)) in done.stdout
    for site in HOSPITALS:
        assert f"hdpfl-site report --profile {federation.profile(site)}" in done.stdout
    rounds = rounds_of(folder_of(federation))
    assert [event["accepted"] for event in rounds] == [HOSPITALS] * ROUNDS


@pytest.mark.parametrize("site", HOSPITALS)
def test_each_ledger_holds_the_runs_releases(demo: tuple[Federation, Done], site: str) -> None:
    federation, _ = demo
    assert "entries verified" in federation.hdpfl_site(site, "ledger")
    report = json.loads(federation.hdpfl_site(site, "report", "--json"))
    profile = toml_of(federation.profile(site))
    assert report["updates"] == {"reserved": 0, "sealed": 0, "sent": ROUNDS, "lost": 0}
    assert report["metrics-released"] == 0
    released = {release: count for release, count in report["released"].items() if count}
    assert released == {"scores": 1}
    (run,) = report["runs"]
    assert {"epsilon": run["epsilon"], "delta": run["delta"]} == pytest.approx(profile["run"])
    assert report["cap"] == pytest.approx(profile["budget"])
    assert [run["run-id"] for run in report["runs"]] == [folder_of(federation).name]
    assert not report["simulation"]


@pytest.mark.parametrize("site", HOSPITALS)
def test_each_site_tests_the_final_model(demo: tuple[Federation, Done], site: str) -> None:
    federation, _ = demo
    kept = load_file(federation.profile(site).parent / "state" / "model.safetensors")
    final = load_file(folder_of(federation) / "model.safetensors")
    assert kept.keys() == final.keys()
    for name, array in final.items():
        np.testing.assert_array_equal(kept[name], array)
    assert "held out of training: accuracy" in federation.hdpfl_site(site, "model", "show")


def test_every_histogram_of_scores_has_its_plans_noise(demo: tuple[Federation, Done]) -> None:
    """At the demo's ε it leaves the measures in 19 of 20 runs; a run says why it lacks one."""
    federation, _ = demo
    found = json.loads((folder_of(federation) / "result.json").read_text())["federated-measures"]
    assert (found["sites"], found["without"]) == (len(HOSPITALS), {})
    reports = [json.loads(federation.hdpfl_site(site, "report", "--json")) for site in HOSPITALS]
    variance = sum(
        report["runs"][0]["plan"]["releases"]["scores"]["noise"] ** 2 for report in reports
    )
    # The sum of four estimates, the loudest of which alone has 32 degrees of freedom.
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 32) / 32
    assert low < found["noise"] ** 2 / variance < high
    assert set(found["measures"]) | set(found["missing"]) == set(OF_CELLS)


def test_no_private_number_reached_the_coordinator(demo: tuple[Federation, Done]) -> None:
    federation, done = demo
    coordinator = [*folder_of(federation).iterdir(), federation.folder / "logs" / "superlink.log"]
    said = done.stdout + "".join(
        path.read_text() for path in coordinator if path.suffix in (".jsonl", ".json", ".log")
    )
    for word in ('"epsilon":', '"batch-size":', "declared-records", "noise_multiplier"):
        assert word not in said, word


def test_profiles_keys_and_records_are_the_owners_alone(demo: tuple[Federation, Done]) -> None:
    federation, _ = demo
    assert stat.S_IMODE(federation.folder.stat().st_mode) == 0o700
    for site in HOSPITALS:
        for path in (
            federation.profile(site),
            federation.profile(site).with_name("data.csv"),
            federation.folder / "certs" / "sites" / site,
        ):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_down_stops_everything_and_keeps_what_was_done(demo: tuple[Federation, Done]) -> None:
    """Last in this file: the others need it up or do not mind."""
    federation, _ = demo
    assert federation.call("down").stdout == f"stopped {', '.join(HOSPITALS)}, superlink\n"
    assert federation.call("down").stdout == "nothing was running\n"
    assert "runs, pid" not in federation.call("status").stdout
    assert "entries verified" in federation.hdpfl_site("va", "ledger")
