"""The table of personal models: each class counts as often as the site has it."""

from __future__ import annotations

import numpy as np
import pytest

from hdpfl_tools.simulation.in_process.personal_accuracy import (
    NOT_TRAINED,
    SiteModels,
    personal_measures,
)


def model(row: list[list[float]]) -> dict[str, np.ndarray]:
    return {"1.weight": np.array(row, np.float32), "1.bias": np.zeros(3, np.float32)}


BAD = np.concatenate([array.ravel() for array in model([[0, 0], [0, 0], [9, 9]]).values()])


def test_the_mean_over_all_and_over_the_smallest_groups() -> None:
    def scores(accuracy: float) -> dict[str, dict[str, float]]:
        return {"personal": {"accuracy": accuracy}, "global": {"accuracy": 1.0}}

    found = [
        (SiteModels(0, 2.0, BAD, group=0), scores(0.2)),
        (SiteModels(1, 2.0, BAD, group=1), scores(0.8)),
        (SiteModels(2, 2.0, None, group=1), {"global": {"accuracy": 1.0}}),
    ]
    tested = personal_measures(found, [0])
    assert tested.metrics == {
        "personal-accuracy": pytest.approx(0.5),
        "personal-accuracy-worst": pytest.approx(0.2),
        "personal-accuracy-minority": pytest.approx(0.2),
    }
    assert (tested.asked, dict(tested.counted)) == (3, {"personal-accuracy": 2})
    assert tested.missing == {"2": NOT_TRAINED}
    assert personal_measures([]).metrics == {}
