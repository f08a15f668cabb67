"""Scores against other libraries, and what has no value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from client_app.worth.scores import OF_ORDER, deciding_measures, gain, scored
from hdpfl_flower.errors import DataError
from hdpfl_flower.measures.clinical import measure
from hdpfl_flower.measures.ranks import auroc
from hdpfl_flower.models.evaluation import measures
from hdpfl_flower.models.task import Records, Task

BINARY, MANY = Task.classification((2,), 2), Task.classification((2,), 4)
NUMBER = Task.regression((2,))


def drawn(task: Task, count: int = 60, seed: int = 1) -> tuple[np.ndarray, Records]:
    random = np.random.default_rng(seed)
    outputs = random.normal(0, 2, (count, task.outputs)).astype(np.float32)
    features = random.normal(0, 1, (count, 2)).astype(np.float32)
    if task.classes:
        return outputs, Records(features, random.integers(task.classes, size=count))
    return outputs, Records(features, random.normal(0, 1, count).astype(np.float32))


def all_of(task: Task, outputs: np.ndarray, records: Records) -> dict[str, float]:
    found = scored(task, outputs, records, "model").measures(np.ones((1, len(records))))
    return {name: float(value[0]) for name, value in found.items()}


@pytest.mark.parametrize("task", [BINARY, MANY, NUMBER], ids=lambda task: task.loss)
def test_measures_are_those_of_a_round(task: Task) -> None:
    outputs, records = drawn(task)
    found, known = all_of(task, outputs, records), measures(task, outputs, records.targets)
    if task.classes:
        assert found["accuracy"] == pytest.approx(known["accuracy"], abs=1e-12)
        assert found["log-loss"] == pytest.approx(known["loss"], rel=1e-5)
    else:
        assert found["mse"] == pytest.approx(known["mse"], rel=1e-6)
        assert found["mae"] == pytest.approx(known["mae"], rel=1e-6)
        assert found["r2"] == pytest.approx(known["accuracy"], rel=1e-4)
    names = scored(task, outputs, records, "model").names
    assert names == list(found)


def test_auroc_is_that_of_another_library_with_ties_and_weights() -> None:
    random = np.random.default_rng(3)
    ranks = random.integers(6, size=80).astype(float)
    positive = random.random(80) < 0.4
    weights = random.integers(3, size=(5, 80)).astype(float)
    wanted = [metrics.roc_auc_score(positive, ranks, sample_weight=w) for w in weights]
    assert np.allclose(auroc(ranks, positive, weights), wanted, atol=1e-12)
    assert auroc(np.zeros(80), positive, np.ones((1, 80))) == pytest.approx(0.5)


def test_auroc_of_one_class_has_no_value() -> None:
    assert np.isnan(auroc(np.arange(4.0), np.ones(4, bool), np.ones((2, 4)))).all()
    outputs, records = drawn(BINARY)
    alone = Records(records.features, np.zeros(60, np.int64))
    assert np.isnan(all_of(BINARY, outputs, alone)["auroc"])


def test_a_mark_that_does_not_vary_has_no_share_explained() -> None:
    outputs, records = drawn(NUMBER)
    same = Records(records.features, np.full(60, 0.7, np.float32))
    assert np.isnan(all_of(NUMBER, outputs, same)["r2"])


def test_a_logit_of_0_is_class_0_as_in_a_round() -> None:
    records = Records(np.zeros((2, 2), np.float32), np.array([0, 1]))
    outputs = np.zeros((2, 1), np.float32)
    assert scored(BINARY, outputs, records, "m").by_record["accuracy"].tolist() == [1.0, 0.0]


def test_large_logits_overflow_nowhere() -> None:
    records = Records(np.zeros((2, 2), np.float32), np.array([0, 1]))
    outputs = np.array([[3e38], [3e38]], np.float32)
    found = scored(BINARY, outputs, records, "m").by_record["log-loss"]
    assert found == pytest.approx([3e38, 0], rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outputs_that_are_not_finite_are_refused(value: float) -> None:
    outputs, records = drawn(MANY)
    outputs[3, 1] = value
    with pytest.raises(DataError, match="the joined model predicts what is not finite"):
        scored(MANY, outputs, records, "joined model")


@pytest.mark.parametrize("task", [BINARY, NUMBER], ids=lambda task: task.loss)
def test_a_gain_is_above_0_where_the_first_one_is_better(task: Task) -> None:
    outputs, records = drawn(task)
    right = torch.tensor(records.targets).float().numpy()[:, None]
    best = (right * 20 - 10 if task.classes else right).astype(np.float32)
    one, other = (scored(task, each, records, "m") for each in (best, outputs))
    for name in [each for each in deciding_measures(task) if each not in OF_ORDER]:
        assert gain(name, one, other).mean() > 0
        assert gain(name, other, one).mean() < 0


def test_the_brier_score_is_that_of_another_library() -> None:
    outputs, records = drawn(BINARY)
    share = 1 / (1 + np.exp(-outputs[:, 0].astype(float)))
    wanted = metrics.brier_score_loss(records.targets, share)
    assert all_of(BINARY, outputs, records)["brier"] == pytest.approx(wanted)
    outputs, records = drawn(MANY)
    shares = np.exp(outputs.astype(float))
    shares /= shares.sum(1, keepdims=True)
    wanted = ((shares - np.eye(4)[records.targets]) ** 2).sum(1).mean()
    assert all_of(MANY, outputs, records)["brier"] == pytest.approx(wanted)


def test_survival_has_its_concordance() -> None:
    task = Task.survival((2,), 3)
    random = np.random.default_rng(1)
    outputs = random.normal(size=(50, 3)).astype(np.float32)
    records = Records(np.zeros((50, 2), np.float32), random.integers(6, size=50))
    found = measure(task, outputs, records.targets).found["concordance"].value
    assert all_of(task, outputs, records)["concordance"] == pytest.approx(found)
    assert deciding_measures(task) == ("log-loss", "concordance")


def test_what_decides_first_is_a_proper_score() -> None:
    """Of an unequal label accuracy is that of the constant, whatever a model knows."""
    assert deciding_measures(BINARY) == ("log-loss", "auroc", "brier", "accuracy")
    assert deciding_measures(MANY)[0] == "log-loss"
    assert "auroc" not in deciding_measures(MANY)
