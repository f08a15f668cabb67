"""R-DPCFL over six real SuperNodes in two groups: each ends with the model of its group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hdpfl_flower.ledger.ledger import Ledger
from tests.e2e.engines import ROOT, Federation, free_ports, rounds_of, toml_of

pytestmark = [pytest.mark.engines, pytest.mark.wards]

CLUSTERS = ROOT / "deploy" / "clusters"
WARDS = [f"{hospital}-{letter}" for hospital in ("cleveland", "hungarian") for letter in "abc"]
TERMS = toml_of(CLUSTERS / "run.toml") | {"rounds": 4, "choice": {"kind": "gaussian", "times": 1}}
"""Each message to a ward starts a process: the ten rounds of ``run.toml`` would take minutes."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Path]]:
    """The federation after one run, and the run's folder."""
    federation = Federation(tmp_path_factory.mktemp("clusters"), free_ports(7))
    try:
        started = federation.call("up", "--sites", CLUSTERS)
        assert started.returncode == 0, started.stderr
        done = federation.call("run", federation.write(TERMS))
        assert done.returncode == 0, done.stdout + done.stderr
        (folder,) = (federation.home / "runs").iterdir()
        yield federation, folder
    finally:
        federation.call("down")


def test_every_ward_gets_the_model_of_its_group(ended: tuple[Federation, Path]) -> None:
    federation, folder = ended
    first, *_, last = rounds_of(folder)
    assert first["accepted"] == last["accepted"] == WARDS
    assert first["gauges"]["clusters_separated"] == 1
    models = json.loads((folder / "result.json").read_text())["models"]
    mine, others = ({models[ward] for ward in part} for part in (WARDS[:3], WARDS[3:]))
    assert len(mine) == len(others) == 1
    assert mine != others
    server = load_file(folder / "model.safetensors")
    for ward in WARDS:
        kept = load_file(federation.profile(ward).parent / "state" / "model.safetensors")
        for name, array in kept.items():
            np.testing.assert_array_equal(array, server[f"{models[ward]}/{name}"])


def test_each_ledger_holds_its_choices_beside_its_updates(ended: tuple[Federation, Path]) -> None:
    federation, folder = ended
    chose = {ward: 0 for ward in WARDS}
    for event in rounds_of(folder):
        for ward, is_choice in zip(
            event["accepted"], event["gauges"].get("chose", [0] * 6), strict=True
        ):
            chose[ward] += int(is_choice)
    for ward in WARDS:
        ledger = Ledger(federation.profile(ward).parent / "ledger.sqlite")
        kinds = [key[2] for key in ledger.account().releases]
        ledger.close()
        assert kinds.count("update") == TERMS["rounds"]
        assert kinds.count("choice") == chose[ward] == 1
