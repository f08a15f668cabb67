"""The home model is a fair opponent, folds split no unit, and no test record is trained on."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from hdpfl_flower.data.array_targets import survival_targets
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.evaluation import measures
from hdpfl_flower.models.task import Records, Task
from hdpfl_tools.site.worth import home_model
from hdpfl_tools.site.worth.candidates import CONSTANT, HOME
from hdpfl_tools.site.worth.constant import constant_outputs
from hdpfl_tools.site.worth.home_model import (
    STRENGTHS,
    HomeTraining,
    fit,
    folds_of,
    home_predictor,
    references,
)
from hdpfl_tools.tables.site_data import UnitRecords

SITES = [(80, 8, -2.0), (240, 8, -1.5), (240, 20, 0.0), (600, 30, -2.0)]
"""Records, features, and an offset that makes the label unequal."""


def drawn(count: int, width: int, offset: float, seed: int) -> Records:
    draw = np.random.default_rng(seed)
    x = draw.uniform(-1, 1, (count, width)).astype(np.float32)
    logits = offset + x @ draw.normal(0, 1.5, width)
    return Records(x, (draw.random(count) < 1 / (1 + np.exp(-logits))).astype(np.int64))


def units_of(records: Records, units: np.ndarray) -> UnitRecords:
    first = np.zeros(len(records), bool)
    first[np.unique(units, return_index=True)[1]] = True
    return UnitRecords(records, units, first, np.zeros(len(records), bool), units)


def loss(task: Task, predict, records: Records) -> float:
    return measures(task, predict(records.features), records.targets)["loss"]


def trained(spec: str, task: Task, records: Records):
    """Return the home model's predictor, and how often it called back."""
    ticks: list[int] = []
    home = HomeTraining(spec, task, 1)
    predict = home_predictor(home, records, np.arange(len(records)), lambda: ticks.append(1))
    assert len(ticks) <= home.fits
    return predict


@pytest.mark.parametrize("site", SITES)
def test_it_loses_no_more_than_the_usual_logistic_regression(site: tuple) -> None:
    count, width, offset = site
    task, home, usual = Task.classification((width,), 2), [], []
    for seed in range(3):
        every = drawn(2 * count, width, offset, seed)
        train, test = every.take(np.arange(count)), every.take(np.arange(count, 2 * count))
        home.append(loss(task, trained("logreg", task, train), test))
        model = LogisticRegression(C=1).fit(train.features, train.targets)
        usual.append(loss(task, lambda x, m=model: m.decision_function(x)[:, None], test))
    assert np.mean(home) <= np.mean(usual) + 0.01


def test_another_strength_is_taken_where_it_is_surely_better() -> None:
    """A label of pure noise with many features: the usual penalty is too weak."""
    draw = np.random.default_rng(2)
    records = Records(draw.normal(size=(120, 60)).astype(np.float32), draw.integers(2, size=120))
    task = Task.classification((60,), 2)
    strongest = fit(task, LogisticRegression(C=min(STRENGTHS), max_iter=2000), records)
    assert np.allclose(
        trained("logreg", task, records)(records.features), strongest(records.features), atol=1e-5
    )


def test_a_network_is_taken_where_it_is_surely_better() -> None:
    draw = np.random.default_rng(5)
    x = draw.uniform(-1, 1, (200, 2)).astype(np.float32)
    task, records = Task.classification((2,), 2), Records(x, (x[:, 0] * x[:, 1] > 0).astype(int))
    assert loss(task, trained("mlp:16", task, records), records) < 0.4
    assert loss(task, trained("logreg", task, records), records) > 0.6
    number = Task.regression((2,))
    records = Records(x, np.sin(3 * x[:, 0]) * x[:, 1])
    network, linear = (trained(spec, number, records) for spec in ("mlp:16", "logreg"))
    assert loss(number, network, records) < 0.5 * loss(number, linear, records)


@pytest.mark.parametrize("same", [True, False])
def test_survival_is_learned_where_intervals_have_the_same_slopes_and_where_not(same: bool) -> None:
    draw, task = np.random.default_rng(1), Task.survival((4,), 3)
    x = draw.uniform(-1, 1, (900, 4)).astype(np.float32)
    slopes = np.repeat(draw.normal(0, 2, (4, 1)), 3, 1) if same else draw.normal(0, 2, (4, 3))
    hits = draw.random((900, 3)) < 1 / (1 + np.exp(1 - x @ slopes))
    records = Records(x, survival_targets(np.where(hits.any(1), hits.argmax(1), 2), hits.any(1)))
    train, test = records.take(np.arange(300)), records.take(np.arange(300, 900))
    rest = np.tile(constant_outputs(task, train.targets), (600, 1))
    gain = measures(task, rest, test.targets)["loss"] - loss(
        task, trained("logreg", task, train), test
    )
    exact = measures(task, (test.features @ slopes - 1).astype(np.float32), test.targets)["loss"]
    assert gain > 0.7 * (measures(task, rest, test.targets)["loss"] - exact)


@pytest.mark.parametrize(
    "task",
    [
        Task.classification((4,), 2),
        Task.classification((4,), 3),
        Task.regression((4,)),
        Task.survival((4,), 3),
    ],
)
def test_outputs_are_those_of_the_task_also_where_a_class_is_absent(task: Task) -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(40, 4)).astype(np.float32)
    y = draw.integers(2, size=40) if task.target_values else (x[:, 0] / 10).astype(np.float32)
    records = Records(x, y)
    for rows in (np.arange(40), np.flatnonzero(y == y[0])[:1]):
        for spec in ("logreg", "mlp:8"):
            outputs = trained(spec, task, records.take(rows))(x)
            assert outputs.shape == (40, task.outputs) and outputs.dtype == np.float32
            assert np.isfinite(outputs).all()
    if task.classes == 3:
        seen = fit(task, LogisticRegression(), records)(x)
        shares = np.exp(seen) / np.exp(seen).sum(1, keepdims=True)
        assert shares[:, 2] == pytest.approx(1 / 43, rel=1e-4)


def test_class_weights_of_the_run_count() -> None:
    records = drawn(200, 2, -2.0, 1)
    task = Task.classification((2,), 2)
    weighted = Task((2,), 1, "logistic", class_weights=(1.0, 9.0))
    means = [
        fit(t, LogisticRegression(), records)(records.features).mean() for t in (task, weighted)
    ]
    assert means[1] > means[0] + 1


def test_folds_split_no_group_and_are_even() -> None:
    groups = np.random.default_rng(1).integers(50, size=300)
    fold = folds_of(groups, 5, 1)
    assert all(len(set(fold[groups == group].tolist())) == 1 for group in range(50))
    of_groups = [len(set(groups[fold == number].tolist())) for number in range(5)]
    assert of_groups == [10] * 5
    assert sorted(set(folds_of(np.array([4, 4, 9]), 5, 1).tolist())) == [0, 1]
    assert not np.array_equal(fold, folds_of(groups, 5, 2))


def test_a_record_is_predicted_by_a_model_that_saw_none_of_its_person(monkeypatch) -> None:
    """Choice and fit of a fold: each person has three records, of which one may be trained on."""
    random = np.random.default_rng(5)
    units = np.repeat(np.arange(40), 3)
    features = random.normal(0, 1, (40, 3)).astype(np.float32)[units]
    records = Records(features, random.integers(2, size=40)[units])
    seen: list[set] = []
    real = home_model.home_predictor

    def note(how, inner, groups, tick):
        assert len(set(groups.tolist())) == len(inner)  # one record of each person
        seen.append({row.tobytes() for row in inner.features})
        return real(how, inner, groups, tick)

    monkeypatch.setattr(home_model, "home_predictor", note)
    how = HomeTraining("logreg", Task.classification((3,), 2), 1)
    models = references(how, units_of(records, units), 4, lambda: None)
    assert set(models) == {CONSTANT, HOME}
    assert [len(rows) for rows in seen] == [30] * 4
    fold = folds_of(units, 4, how.seed)
    for number, rows in enumerate(seen):
        assert not rows & {row.tobytes() for row in features[fold == number]}


def test_one_unit_cannot_be_cross_validated_and_no_record_not_trained_on() -> None:
    how = HomeTraining("logreg", Task.classification((3,), 2), 1)
    every = units_of(drawn(3, 3, 0, 1), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="at least two units"):
        references(how, every, 5, lambda: None)
    nothing = every.records.take(np.arange(0))
    with pytest.raises(DataError, match="no record is left"):
        home_predictor(how, nothing, np.arange(0), lambda: None)
