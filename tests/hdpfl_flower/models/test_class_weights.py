"""Public weights of classes: what is trained, what is measured, what is refused, what it is for.

That every engine clips the weighted gradient is in ``tests/hdpfl_flower/engines/test_engines.py``
and ``test_stacked_dpsgd.py``, where one of the tasks has weights.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from client_app.training.plain_sgd import LocalJob, Network
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.models.losses import output_gradient
from hdpfl_flower.models.task import Records, Task

RARE = Task.classification((4,), 2)
WEIGHTED = replace(RARE, class_weights=(0.1, 1.0))


def terms(**keys: object) -> RunTerms:
    return RunTerms.parse({"dataset": "site", **keys})


@pytest.mark.parametrize("key", ["schema", "task", "dataset"])
def test_weights_go_with_any_description_of_the_records(key: str) -> None:
    given = {
        "schema": "heart",
        "task": {"kind": "classification", "shape": "4", "classes": 2},
        "dataset": "heart",
    }
    task = task_for(terms(**{key: given[key], "class-weights": "balanced:3,1"}))
    assert task.class_weights == pytest.approx((1 / 3, 1.0))
    assert task.of_records == replace(task, class_weights=())
    assert task_for(terms(**{key: given[key]})).class_weights == ()


CLASSES = {"kind": "classification", "shape": 4, "classes": 2}


@pytest.mark.parametrize(
    ("weights", "task", "words"),
    [
        ("1,2,3", CLASSES, "'class-weights' holds 3 .* 2 classes"),
        ("1,2", {"kind": "regression", "shape": 4}, "'class-weights' holds 2 .* 0 classes"),
        ("1,2", {"kind": "survival", "shape": 4, "intervals": 1}, "holds 2 .* 0 classes"),
        *(
            (wrong, CLASSES, "'class-weights' must be one number above 0")
            for wrong in ("2", "1;2", "1,0", "1,-2", "1,nan", "1,inf", "1,1e400", "balanced",
                          "balanced:1", "balanced:1,0", "inverse:1,2", "1,2\n", " 1,2")
        ),
        ("1," * 300 + "1", {**CLASSES, "classes": 301}, "'class-weights'"),
    ],
)  # fmt: skip
def test_weights_that_are_none_are_refused(
    weights: str, task: dict[str, object], words: str
) -> None:
    with pytest.raises((DataError, TermsError), match=words):
        task_for(terms(**{"class-weights": weights, "task": task}))


def test_a_softmax_layers_silent_sums_stay_zero() -> None:
    """What estimators of noise read (``estimators/softmax_head.py``)."""
    task = replace(Task.classification((4,), 3), class_weights=(0.1, 5.0, 1.0))
    outputs = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
    found = output_gradient(task, outputs, torch.tensor([0, 1]))
    torch.testing.assert_close(found.sum(1), torch.zeros(2, dtype=torch.float64))
    assert found.abs().amin() > 0


def test_local_sgd_follows_the_weighted_loss() -> None:
    """One step on one record of each class: the first one's is a tenth of what it would be."""
    records = Records(np.eye(4, dtype=np.float32)[:2], np.array([0, 1]))
    batches = (np.array([0, 1]),)
    plain, weighted = (
        network.train(LocalJob(np.zeros(5, np.float32), records, batches), 1.0)
        for network in (Network("logreg", task, "cpu") for task in (RARE, WEIGHTED))
    )
    np.testing.assert_allclose(plain, [-0.25, 0.25, 0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(weighted, [-0.025, 0.25, 0, 0, 0.225], atol=1e-7)
