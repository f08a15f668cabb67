"""The table of personal models: each class counts as often as the site has it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.scenarios.site_tests import OwnTests
from server_app.in_process.personal_accuracy import (
    NOT_TRAINED,
    SiteModels,
    personal_measures,
    personal_table,
    site_scores,
)

TASK = Task.classification((2,), 3)
TEST = Records(
    np.array([[1, 0], [1, 0], [0, 1], [-1, -1]], np.float32), np.array([0, 1, 1, 2], np.int64)
)
SHARES = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
OWN = OwnTests(TASK, TEST, TEST.targets, SHARES, SHARES.argmax(1).astype(float))


def model(row: list[list[float]]) -> dict[str, np.ndarray]:
    return {"1.weight": np.array(row, np.float32), "1.bias": np.zeros(3, np.float32)}


GOOD = model([[1, 0], [0, 1], [-1, -1]])
BAD = np.concatenate([array.ravel() for array in model([[0, 0], [0, 0], [9, 9]]).values()])


def test_a_row_a_level_and_model() -> None:
    sites = [SiteModels(0, math.inf, None), SiteModels(1, 2.0, BAD), SiteModels(2, 2.0, None)]
    rows = personal_table(site_scores("logreg", OWN, GOOD, [TEST], sites))
    found = {(r["level"], r["model"]): (r["sites"], r["accuracy"], r["variance"]) for r in rows}
    assert found == {
        ("opted out", "global"): (1, 0.75, 0.0),
        ("opted out", "constant"): (1, 0.5, 0.0),
        ("private", "global"): (2, 0.75, pytest.approx(0.0625)),
        ("private", "constant"): (2, 1.0, 0.0),
        ("private", "personal"): (1, 0.0, 0.0),
    }
    worst = {(r["level"], r["model"]): r["worst"] for r in rows}
    assert worst["private", "global"] == 0.5
    assert all(math.isfinite(r["loss"]) for r in rows if r["model"] != "constant")


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
