"""Public weights of classes: what is trained, what is measured, what is refused, what it is for.

That every engine clips the weighted gradient is in ``tests/client_app/training/test_engines.py``
and ``test_stacked_dpsgd.py``, where one of the tasks has weights.
"""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.training.plain_sgd import LocalJob, Network
from client_app.worth.linear_model import fit_linear
from hdpfl_flower.config import tasks
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.datasets import task_for
from hdpfl_flower.errors import DataError, TermsError
from hdpfl_flower.models.evaluation import measures, predict
from hdpfl_flower.models.losses import output_gradient, training_loss
from hdpfl_flower.models.task import Records, Task
from server_app.in_process.in_process_run import run_in_process

RARE = Task.classification((4,), 2)
WEIGHTED = replace(RARE, class_weights=(0.1, 1.0))


def test_examples() -> None:
    assert doctest.testmod(tasks).failed == 0


def terms(**keys: object) -> RunTerms:
    return RunTerms.parse({"dataset": "site", **keys})


def records_of(seed: int, count: int = 3000) -> Records:
    """Return records of which one in ten is of class 1, in part among the others."""
    draws = np.random.default_rng(seed)
    targets = (draws.random(count) < 0.1).astype(np.int64)
    features = draws.normal((2 * targets[:, None] - 1) * 0.35, 0.5, (count, 4))
    return Records(features.clip(-1, 1).astype(np.float32), targets)


@pytest.mark.parametrize("key", ["schema", "task", "dataset"])
def test_weights_go_with_any_description_of_the_records(key: str) -> None:
    given = {"schema": "heart", "task": "classification shape=4 classes=2", "dataset": "heart"}
    task = task_for(terms(**{key: given[key], "class-weights": "balanced:3,1"}))
    assert task.class_weights == pytest.approx((1 / 3, 1.0))
    assert task.of_records == replace(task, class_weights=())
    assert task_for(terms(**{key: given[key]})).class_weights == ()


@pytest.mark.parametrize(
    ("weights", "task", "words"),
    [
        ("1,2,3", "classification shape=4 classes=2", "'class-weights' holds 3 .* 2 classes"),
        ("1,2", "regression shape=4", "'class-weights' holds 2 .* 0 classes"),
        ("1,2", "survival shape=4 intervals=1", "'class-weights' holds 2 .* 0 classes"),
        *(
            (wrong, "classification shape=4 classes=2", "'class-weights' must be a number above 0")
            for wrong in ("2", "1;2", "1,0", "1,-2", "1,nan", "1,inf", "1,1e400", "balanced",
                          "balanced:1", "balanced:1,0", "inverse:1,2", "1,2\n", " 1,2")
        ),
        ("1," * 300 + "1", "classification shape=4 classes=301", "'class-weights'"),
    ],
)  # fmt: skip
def test_weights_that_are_none_are_refused(weights: str, task: str, words: str) -> None:
    with pytest.raises((DataError, TermsError), match=words):
        task_for(terms(**{"class-weights": weights, "task": task}))


def test_measures_count_every_record_alike() -> None:
    records = records_of(0, 50)
    outputs = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    assert measures(WEIGHTED, outputs, records.targets) == measures(RARE, outputs, records.targets)


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


def recall(outputs: np.ndarray, records: Records) -> float:
    return float((outputs[records.targets == 1, 0] > 0).mean())


def test_the_linear_model_at_home_has_the_same_weights() -> None:
    train, test = records_of(1), records_of(2)
    found = [recall(fit_linear(t, train, 1.0)(test.features), test) for t in (RARE, WEIGHTED)]
    assert found[0] + 0.1 < found[1]
    only = train.take(np.flatnonzero(train.targets == 0))
    assert fit_linear(WEIGHTED, only, 1.0)(test.features).shape == (len(test), 1)


def test_a_run_with_weights_finds_more_of_the_rare_class(tmp_path: Path) -> None:
    """At the same ε: recall, and the mean of both classes' recalls."""
    train, test = records_of(3), records_of(4)
    own = {"owner": np.arange(len(train)) % 3, "owner_test": np.arange(len(test)) % 3}
    np.savez(tmp_path / "rare.npz", x=train.features, y=train.targets, x_test=test.features,
             y_test=test.targets, **own)  # fmt: skip
    recalls, balanced = [], []
    for weights in ("", "balanced:0.9,0.1"):
        config = RunConfig.parse({
            "dataset": f"file:{tmp_path / 'rare.npz'}", "class-weights": weights, "rounds": 8,
            "task": "classification shape=4 classes=2", "epsilons": "4", "strategy": "fedavg",
            "learning-rate": 0.5, "evaluation": "none", "runs-dir": str(tmp_path),
        })  # fmt: skip
        arrays = run_in_process(config, 3).arrays
        outputs = predict("logreg", RARE, arrays, test.features)
        recalls.append(recall(outputs, test))
        balanced.append((recalls[-1] + (outputs[test.targets == 0, 0] <= 0).mean()) / 2)
    assert recalls[0] + 0.1 < recalls[1]
    assert balanced[0] + 0.05 < balanced[1]


def test_each_record_has_the_weight_of_its_class() -> None:
    outputs = torch.tensor([[0.0], [0.0]])
    found = training_loss(WEIGHTED, outputs, torch.tensor([0, 1]))
    assert float(found) == pytest.approx(1.1 * np.log(2))
