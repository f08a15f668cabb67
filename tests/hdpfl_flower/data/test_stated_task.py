"""Records without a schema: what the terms state, what they lack, and npz and images by it."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data import array_targets, stated_task
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.data.site_check import check_site_data
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from tests.hdpfl_flower.data.test_site_data import VECTORS, read_npz, save, source


def test_examples() -> None:
    assert doctest.testmod(stated_task).failed == doctest.testmod(array_targets).failed == 0


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


@pytest.mark.parametrize(("bad", "is_error"), [(0, False), (20, False), (21, True), (100, True)])
def test_the_check_of_arrays_counts_labels_outside_of_the_classes(
    tmp_path: Path, bad: int, is_error: bool
) -> None:
    y = np.where(np.arange(100) < bad, 10, np.arange(100) % 4)
    path = save(tmp_path / "d.npz", x=np.zeros((100, 3)), y=y)
    lines = check_site_data(source(path, "npz"), VECTORS, "", 100)
    errors = [line for line in lines if "'y' must hold whole numbers from 0 to 3" in line]
    assert bool(errors) == is_error
    assert all(line.startswith(f"error: left out: {bad} of 100 records") for line in errors)


def test_the_check_of_images_names_the_folders(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"x")
    lines = check_site_data(source(tmp_path, "images"), Task.classification((1, 4, 4), 3), "", 1)
    assert any("the subfolders must be named 0 to 2" in line for line in lines)
