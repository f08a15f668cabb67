"""Records without a schema: what the terms state, what they lack, and npz and images by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.models.task import Task
from hdpfl_tools.simulation.own_data.dataset import stated_of
from tests.hdpfl_tools.tables.test_site_data import read_npz


def stated(**keys: object) -> Task:
    return task_for(RunTerms.parse({"dataset": "site", **keys}))


@pytest.mark.parametrize(
    ("table", "task"),
    [
        (
            {"kind": "classification", "shape": "1,28,28", "classes": 10},
            Task.classification((1, 28, 28), 10),
        ),
        ({"classes": 2, "shape": 13, "kind": "classification"}, Task((13,), 1, "logistic")),
        ({"kind": "regression", "shape": "13"}, Task.regression((13,))),
        ({"kind": "survival", "shape": "13,2", "intervals": 1}, Task.survival((13, 2), 1)),
    ],
)
def test_the_terms_state_a_task(table: dict[str, object], task: Task) -> None:
    assert stated(task=table) == task
    assert stated(task=stated_of(task)) == task


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "do not say what a record is"),
        ({"dataset": "file:x.npz"}, "'task' is empty"),
        ({"task": {"kind": "regression"}}, "lacks task.shape"),
        ({"task": {"kind": "survival"}}, "lacks task.shape and task.intervals"),
        (
            {"task": {"kind": "regression", "shape": "13"}, "schema": "heart"},
            "both say what a record is",
        ),
        ({"task": {"kind": "regression", "shape": "13"}, "dataset": "digits"}, "has its own"),
        ({"task": {"kind": "regressoin", "shape": 13}}, "did you mean 'regression'"),
        ({"task": {"kind": "regression", "shape": "13x2"}}, "whole numbers with commas"),
        ({"task": {"kind": "regression", "shape": "0"}}, "holds 0 numbers a record"),
        (
            {"task": {"kind": "regression", "shape": "99999,99999"}},
            "9,999,800,001 numbers a record",
        ),
        (
            {"task": {"kind": "regression", "shape": "13", "classes": 2}},
            "'task.classes' is not a known key",
        ),
        (
            {"task": {"kind": "classification", "shape": "13", "classes": 1}},
            "'task.classes' must be 2 or more",
        ),
        (
            {"task": {"kind": "classification", "shape": "13", "classes": 1000000}},
            "must be less than or equal to",
        ),
    ],
)
def test_terms_that_state_no_task_are_refused(keys: dict[str, object], words: str) -> None:
    with pytest.raises((DataError, TermsError), match=words) as caught:
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
