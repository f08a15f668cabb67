"""What both rules claim of clusters on data that no threshold was chosen on: digits.

The thresholds of ``hdpfl_flower/clustering/claims.py`` were chosen on MNIST.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from server_app.in_process.in_process_run import run_in_process

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("guessed_noise")]

CLIENTS = 12
CASES = {
    "iid": ({}, False),
    "shards:2": ({"partition": "shards:2"}, False),
    "shards:3": ({"partition": "shards:3"}, False),
    "dirichlet:0.3": ({"partition": "dirichlet:0.3"}, False),
    "relabelled": ({"groups": "label-shift:3:3:3:3"}, True),
    "turned": ({"groups": "rotation:3:3:3:3"}, True),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("strategy", "rounds"), [("late-clusters", 30), ("r-dpcfl", 1)])
def test_clusters_are_claimed_of_groups_alone(
    name: str, strategy: str, rounds: int, tmp_path: Path
) -> None:
    more, groups = CASES[name]
    config = {
        "strategy": strategy, "rounds": rounds, "partition": "iid", "epsilons": "20", "seed": 51,
        "learning-rate": 0.5, "evaluation": "none", "runs-dir": str(tmp_path), **more,
    }  # fmt: skip
    result = run_in_process(RunConfig.parse(config), CLIENTS)
    claimed = [event["gauges"].get("clusters_separated", 0) for event in result.rounds]
    assert any(claimed) == groups
