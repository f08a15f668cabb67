"""``flwr run`` under Ray: who opts out of privacy, and what a user sees when a run fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hdpfl_flower.monitoring.journal import read_journal
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from tests.e2e.engines import SITES, Ray, digest, rounds_of, seeded_terms

pytestmark = [pytest.mark.engines]


def test_a_failed_run_says_why_on_one_line_and_in_flowers_list(ray: Ray) -> None:
    """``flwr run`` itself ends with 0: its status is to be read from ``flwr list``."""
    _, streamed = ray.run(seeded_terms(strategy="nope"), 2)
    assert "ERROR: 'strategy': 'nope' is not known; choose one of" in streamed.stdout
    last = ray.last_run()
    assert last["status"] == "finished:failed"
    assert "'nope' is not known" in last["status-details"]


@pytest.mark.story
def test_opted_out_and_private_sites_end_with_the_same_bits(ray: Ray, tmp_path: Path) -> None:
    """``flwr run .`` with fedhdp: the global model, and each site's own."""
    terms = seeded_terms(
        strategy="fedhdp", epsilons="1,2,4,inf", noise="client", rounds=2,
        **{"second": {"kind": "kept", "pull": 0.1}, "run-id": "opt-out-ray"},
    )  # fmt: skip
    here = run_in_process(terms.updated(runs_dir=str(tmp_path)), SITES).folder
    there, streamed = ray.run(terms, SITES)
    assert ray.last_run()["status"] == "finished:completed", streamed.stdout
    assert [len(event["rejected"]) for event in rounds_of(there)] == [0] * 2
    for site in range(SITES):
        (name,) = here.glob(f"sites/{site}/personal-*.safetensors")
        assert (there / name.relative_to(here)).read_bytes() == name.read_bytes()
    assert digest(here) == digest(there)
    said = read_journal(there / "journal.jsonl")[0]["federation-config"]  # hdpfl resume repeats it
    assert said.startswith("num-supernodes=4 client-resources-num-cpus=1 ")
    promised = json.loads((there / "result.json").read_text())["privacy"]
    assert promised["no privacy"] == ["3"]
