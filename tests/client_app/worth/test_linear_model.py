"""The home model is a fair opponent: scikit-learn's logistic regression on the same folds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from client_app.worth import home_model
from client_app.worth.candidates import CONSTANT, HOME
from client_app.worth.home_model import HomeTraining, folds_of, home_pieces, home_predictor
from client_app.worth.judgement import out_of_fold
from client_app.worth.linear_model import STRENGTHS, fit_linear, linear_losses
from client_app.worth.scores import scored
from hdpfl_flower.data.site_data import UnitRecords
from hdpfl_flower.models.evaluation import measures
from hdpfl_flower.models.task import Records, Task

SITES = [(80, 8, -2.0), (240, 8, -1.5), (240, 20, 0.0), (600, 30, -2.0)]
"""Records, features, and an offset that makes the label unequal."""


def drawn(count: int, width: int, offset: float, seed: int) -> Records:
    draw = np.random.default_rng(seed)
    x = draw.uniform(-1, 1, (count, width)).astype(np.float32)
    logits = offset + x @ draw.normal(0, 1.5, width)
    return Records(x, (draw.random(count) < 1 / (1 + np.exp(-logits))).astype(np.int64))


def every(records: Records) -> UnitRecords:
    number = np.arange(len(records))
    return UnitRecords(records, number, number >= 0, number < 0, number)


def loss(task: Task, outputs: np.ndarray, records: Records) -> float:
    return float(scored(task, outputs, records, "m").by_record["log-loss"].mean())


def gains_of(count: int, width: int, offset: float, seed: int) -> tuple[float, float]:
    """Return the gain over the constant of the home model, and of C = 1, on the same folds."""
    task, records = Task.classification((width,), 2), drawn(count, width, offset, seed)
    how = HomeTraining("logreg", task, "cpu", 32, (0.1,), 4, 0)
    out = out_of_fold(how, every(records), 5, lambda: None)
    fold, usual = folds_of(np.arange(count), 5, 0), np.zeros((count, 1))
    for k in range(5):
        model = LogisticRegression(C=1).fit(records.features[fold != k], records.targets[fold != k])
        usual[fold == k, 0] = model.decision_function(records.features[fold == k])
    constant = loss(task, out[CONSTANT], records)
    return constant - loss(task, out[HOME], records), constant - loss(task, usual, records)


def test_it_gains_as_much_as_the_usual_logistic_regression() -> None:
    found = np.array([gains_of(*site, seed) for site in SITES for seed in range(3)])
    assert found[:, 0].sum() >= 0.99 * found[:, 1].sum()
    assert (found[:, 0] >= found[:, 1] - 0.01).all(), found


def test_its_choice_does_not_jump_from_fold_to_fold() -> None:
    for count, width, offset in SITES[:2]:
        task, records = Task.classification((width,), 2), drawn(count, width, offset, 1)
        fold = folds_of(np.arange(count), 5, 0)
        chosen = []
        for k in range(5):
            inner = records.take(np.flatnonzero(fold != k))
            parts = folds_of(np.arange(len(inner)), 5, 1)
            folds = [(np.flatnonzero(parts != j), np.flatnonzero(parts == j)) for j in range(5)]
            chosen.append(linear_losses(task, inner, folds, lambda: None)[0])
        assert max(chosen) <= 10 * min(chosen), chosen


def test_another_strength_is_taken_where_it_is_surely_better() -> None:
    """A label of pure noise with many features: the usual penalty is too weak."""
    draw = np.random.default_rng(2)
    records = Records(draw.normal(size=(120, 60)).astype(np.float32), draw.integers(2, size=120))
    fold = np.arange(120) % 5
    folds = [(np.flatnonzero(fold != j), np.flatnonzero(fold == j)) for j in range(5)]
    task = Task.classification((60,), 2)
    assert linear_losses(task, records, folds, lambda: None)[0] == min(STRENGTHS)


@pytest.mark.parametrize(
    "task", [Task.classification((4,), 2), Task.classification((4,), 3), Task.regression((4,))]
)
def test_outputs_are_those_of_the_task_also_where_a_class_is_absent(task: Task) -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(40, 4)).astype(np.float32)
    y = draw.integers(2, size=40) if task.classes else x[:, 0] / 10
    records = Records(x, y if task.classes else y.astype(np.float32))
    for rows in (np.arange(40), np.flatnonzero(y == y[0])[:1]):
        outputs = fit_linear(task, records.take(rows), 1.0)(x)
        assert outputs.shape == (40, task.outputs) and outputs.dtype == np.float32
        assert np.isfinite(outputs).all()
    if task.classes == 3:
        seen = fit_linear(task, records, 1.0)(x)
        shares = np.exp(seen) / np.exp(seen).sum(1, keepdims=True)
        assert shares[:, 2] == pytest.approx(1 / 43, rel=1e-4)


def test_a_network_takes_its_place_only_where_it_is_surely_better() -> None:
    draw = np.random.default_rng(5)
    x = draw.uniform(-1, 1, (400, 2)).astype(np.float32)
    task = Task.classification((2,), 2)
    curved = Records(x, (x[:, 0] * x[:, 1] > 0).astype(np.int64))
    how = HomeTraining("mlp:16", task, "cpu", 16, (0.3, 1.0), 32, 1)
    ticks: list[int] = []
    found = home_predictor(how, curved, np.arange(400), lambda: ticks.append(1))
    assert measures(task, found(x), curved.targets)["loss"] < 0.4
    assert len(ticks) == home_pieces(how)
    straight = Records(x[:60], (x[:60, 0] > 0).astype(np.int64))
    linear = home_predictor(replace(how, most_epochs=1), straight, np.arange(60), lambda: None)
    assert np.array_equal(linear(x), fit_linear(task, straight, 1.0)(x)) or any(
        np.array_equal(linear(x), fit_linear(task, straight, one)(x)) for one in STRENGTHS
    )


def test_what_is_tested_on_takes_no_part_in_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    records, seen = drawn(60, 3, 0, 1), []
    real = home_model.linear_losses

    def note(task, inner, folds, tick):
        seen.append({row.tobytes() for row in inner.features})
        return real(task, inner, folds, tick)

    monkeypatch.setattr(home_model, "linear_losses", note)
    how = HomeTraining("logreg", Task.classification((3,), 2), "cpu", 16, (0.1,), 4, 0)
    out_of_fold(how, every(records), 4, lambda: None)
    fold = folds_of(np.arange(60), 4, 0)
    for number, rows in enumerate(seen):
        assert not rows & {row.tobytes() for row in records.features[fold == number]}
