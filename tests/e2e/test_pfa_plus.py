"""PFA+ where sites are processes: what a node keeps from message to message is really there."""

from __future__ import annotations

from pathlib import Path

import pytest

from server_app.local import run_in_process
from tests.e2e.engines import SITES, Federation, Ray, digest, rounds_of, seeded_terms

pytestmark = pytest.mark.engines


def test_three_engines_send_one_number_and_give_the_same_bits(
    federation: Federation, ray: Ray, tmp_path: Path
) -> None:
    terms = seeded_terms(strategy="pfa-plus", **{"run-id": "same-pfa-plus"})
    here = run_in_process(terms.updated(runs_dir=str(tmp_path)), SITES).folder
    deployed, done = federation.run(terms)
    assert done.returncode == 0, done.stdout + done.stderr
    simulated, streamed = ray.run(terms, SITES)
    assert ray.last_run()["status"] == "finished:completed", streamed.stdout
    for folder in (here, deployed, simulated):
        gauges = [event["gauges"] for event in rounds_of(folder)]
        assert [gauge["warm_up"] for gauge in gauges] == [1, 0, 0], folder
        for gauge in gauges[1:]:
            private = [1 - public for public in gauge["public"]]
            assert sum(private) > 0
            assert gauge["sent_numbers"] == private, folder
    assert digest(deployed) == digest(here)
    assert digest(simulated) == digest(here)
