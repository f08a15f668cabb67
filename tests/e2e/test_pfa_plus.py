"""PFA+ where sites are processes: what a node keeps from message to message is really there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
from tests.e2e.engines import SITES, digest, rounds_of, seeded_terms

pytestmark = [pytest.mark.engines, pytest.mark.wards]


def test_engines_agree_in_bits(run_on_engine: Callable[[RunConfig], Path], tmp_path: Path) -> None:
    terms = seeded_terms(strategy="pfa-plus", **{"run-id": "same-pfa-plus"})
    here = run_in_process(terms.updated(runs_dir=str(tmp_path)), SITES).folder
    there = run_on_engine(terms)
    for folder in (here, there):
        gauges = [event["gauges"] for event in rounds_of(folder)]
        assert [gauge["warm_up"] for gauge in gauges] == [1, 0, 0], folder
        for gauge in gauges[1:]:
            private = [1 - public for public in gauge["public"]]
            assert sum(private) > 0
            assert gauge["sent_numbers"] == private, folder
    assert digest(there) == digest(here)
