"""The table of personal models: each class counts as often as the site has it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hdpfl_flower.task import Records, Task
from server_app.personal import (
    SiteModels,
    class_accuracies,
    personal_metrics,
    personal_table,
    site_accuracies,
)

TASK = Task.classification((2,), 3)
TEST = Records(
    np.array([[1, 0], [1, 0], [0, 1], [-1, -1]], np.float32), np.array([0, 1, 1, 2], np.int64)
)


def model(row: list[list[float]]) -> dict[str, np.ndarray]:
    return {"1.weight": np.array(row, np.float32), "1.bias": np.zeros(3, np.float32)}


GOOD = model([[1, 0], [0, 1], [-1, -1]])


def test_each_class_is_tested_on_its_own() -> None:
    found = class_accuracies("logreg", TASK, GOOD, TEST, [0, 1])
    assert found[:2].tolist() == [1.0, 0.5]
    assert math.isnan(found[2])


def test_a_row_a_level_and_model() -> None:
    bad = np.concatenate([array.ravel() for array in model([[0, 0], [0, 0], [9, 9]]).values()])
    sites = [
        SiteModels(math.inf, np.array([0.5, 0.5, 0.0]), None),
        SiteModels(2.0, np.array([1.0, 0.0, 0.0]), bad),
        SiteModels(2.0, np.array([0.0, 1.0, 0.0]), None),
    ]
    rows = personal_table(site_accuracies("logreg", TASK, GOOD, [TEST], sites))
    found = {(r["level"], r["model"]): (r["sites"], r["accuracy"], r["variance"]) for r in rows}
    assert found == {
        ("opted out", "global"): (1, 0.75, 0.0),
        ("opted out", "constant"): (1, 0.5, 0.0),
        ("private", "global"): (2, 0.75, pytest.approx(0.0625)),
        ("private", "constant"): (2, 1.0, 0.0),
        ("private", "personal"): (1, 0.0, 0.0),
    }


def test_the_mean_over_all_and_over_the_smallest_groups() -> None:
    site = SiteModels(2.0, np.array([1.0, 0.0, 0.0]), None)
    found = [
        (replace(site, group=0), {"personal": 0.2, "global": 1.0}),
        (replace(site, group=1), {"personal": 0.8, "global": 1.0}),
        (replace(site, group=1), {"global": 1.0}),
    ]
    assert personal_metrics(found, [0]) == {
        "personal-accuracy": pytest.approx(0.5),
        "personal-accuracy-minority": pytest.approx(0.2),
    }
    assert personal_metrics([]) == {}
