"""The benchmarks without training measure rounds that took place."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ready import ready_updates, run_ready


@pytest.mark.parametrize("strategy", ["fedavg", "r-dpcfl"])
def test_ready_updates_take_the_place_of_training(strategy: str) -> None:
    """Updates of pure noise come back, one a site and round, and nothing is trained."""
    updates = ready_updates(6, 650)
    sent = [next(updates) for _ in range(6)]
    more = {"groups": "rotation:1:2", "r-dpcfl.clusters": 2, "partition": "iid",
            "selection-share": 0.0}  # fmt: skip
    result = run_ready(
        updates, 3, strategy=strategy, model="logreg", rounds=2,
        **(more if strategy == "r-dpcfl" else {}),
    )  # fmt: skip
    came = [norm for event in result.rounds for norm in event["norms"]]
    assert sorted(came) == pytest.approx(sorted(np.linalg.norm(sent, axis=1).tolist()))
