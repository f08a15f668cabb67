"""Records without a schema: what the terms state, what they lack, and npz and images by it."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data import stated_task
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.data.test_site_data import read_npz


def test_examples() -> None:
    assert doctest.testmod(stated_task).failed == 0


def stated(**keys: object) -> Task:
    return task_for(RunTerms.parse({"dataset": "site", **keys}))


@pytest.mark.parametrize(
    ("keys", "task"),
    [
        ({"input-shape": "1,28,28", "classes": 10}, Task.classification((1, 28, 28), 10)),
        ({"input-shape": "13", "classes": 2}, Task((13,), 1, "logistic")),
        ({"input-shape": "13", "task": "regression"}, Task.regression((13,))),
        ({"input-shape": " 13 , 2", "intervals": 6}, Task.survival((13, 2), 6)),
        ({"input-shape": "13", "task": "survival", "intervals": 1}, Task.survival((13,), 1)),
    ],
)
def test_the_terms_state_a_task(keys: dict[str, object], task: Task) -> None:
    assert stated(**keys) == task


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "do not say what a record is"),
        ({"input-shape": "13"}, "set 'classes', 'intervals', or 'task' to regression"),
        ({"classes": 2}, "'input-shape' is empty"),
        ({"input-shape": "13x2", "classes": 2}, "whole numbers with commas"),
        ({"input-shape": "0", "classes": 2}, "holds 0 numbers a record"),
        ({"input-shape": "99999,99999", "classes": 2}, "9,999,800,001 numbers a record"),
        ({"input-shape": "13", "classes": 1}, "'classes' is 1; give a number from 2"),
        ({"input-shape": "13", "classes": 10**6}, "'classes' is 1000000"),
        ({"input-shape": "13", "task": "survival"}, "'intervals' is 0"),
        ({"input-shape": "13", "task": "regression", "classes": 2}, "remove one of them"),
        ({"input-shape": "13", "classes": 2, "task": "classification", "intervals": 3}, "remove"),
        ({"input-shape": "13", "classes": 2, "schema": "heart"}, "both say what a record is"),
        ({"dataset": "digits", "classes": 2}, "has its own"),
    ],
)
def test_terms_that_state_no_task_are_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        stated(**keys)
    assert "\n" not in str(caught.value)


def test_an_npz_of_survival_is_read(tmp_path: Path) -> None:
    """(last interval, event): of six records the last four are none."""
    y = np.array([[0, 1], [2, 0], [3, 1], [1, 2], [-1, 0], [np.nan, 1]])
    data = read_npz(tmp_path, Task.survival((3,), 3), x=np.zeros((6, 3)), y=y)
    assert data.train.targets.tolist() == [1, 4]
    assert data.summary.left_out["no known label"] == 4
    with pytest.raises(DataError, match=r"'y' of shape \(n, 2\)"):
        read_npz(tmp_path, Task.survival((3,), 3), x=np.zeros((6, 3)), y=y[:, 0])
