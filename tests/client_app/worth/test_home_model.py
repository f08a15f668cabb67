"""Training at home: rates are chosen, folds split no unit, and nothing depends on the clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from client_app.worth import home_model
from client_app.worth.candidates import CONSTANT, HOME
from client_app.worth.home_model import HomeTraining, folds_of, pieces, train_at_home
from client_app.worth.judgement import out_of_fold
from hdpfl_flower.data.site_data import UnitRecords
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.evaluation import evaluate
from hdpfl_flower.models.task import Records, Task

TASK = Task.classification((3,), 2)
HOW = HomeTraining("logreg", TASK, "cpu", 16, (0.03, 0.1, 1.0), 8, 1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several would wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(count: int, seed: int, noise: float = 0.3) -> Records:
    random = np.random.default_rng(seed)
    features = random.normal(0, 1, (count, 3)).astype(np.float32)
    logits = features @ np.array([2.0, -1, 0]) + random.normal(0, noise, count)
    return Records(features, (logits > 0).astype(np.int64))


def trained(how: HomeTraining, records: Records) -> tuple[dict, int]:
    ticks: list[int] = []
    groups = np.arange(len(records))
    return train_at_home(how, records, groups, lambda: ticks.append(1)), len(ticks)


def test_it_learns_what_there_is_and_says_how_far_it_is() -> None:
    arrays, ticks = trained(HOW, drawn(200, 1))
    assert evaluate("logreg", TASK, arrays, drawn(400, 2))["accuracy"] > 0.9
    assert ticks == pieces(HOW)


def test_a_run_with_a_useless_rate_does_not_make_a_weak_control() -> None:
    """With the rate of the run alone the home model learns nothing."""
    test = drawn(400, 2)
    for rate in (1e-6, 50.0):
        arrays, _ = trained(replace(HOW, rates=(rate, 0.1, 1.0)), drawn(200, 1))
        assert evaluate("logreg", TASK, arrays, test)["loss"] < 0.35
    alone, _ = trained(replace(HOW, rates=(1e-6,)), drawn(200, 1))
    assert evaluate("logreg", TASK, alone, test)["loss"] > 0.5


def test_labels_of_one_class_and_a_single_record_train() -> None:
    records = drawn(20, 1)
    arrays, _ = trained(HOW, Records(records.features, np.zeros(20, np.int64)))
    assert evaluate("logreg", TASK, arrays, records.take(records.targets.argsort()[:5]))["accuracy"]
    arrays, _ = trained(HOW, records.take(np.arange(1)))
    assert all(np.isfinite(array).all() for array in arrays.values())


def test_a_model_that_diverges_at_every_rate_is_said() -> None:
    task = Task.regression((3,))
    records = Records(drawn(40, 1).features * 1e18, np.ones(40, np.float32))
    with pytest.raises(DataError, match="diverges at every learning rate"):
        trained(replace(HOW, task=task), records)


def test_folds_split_no_group_and_are_even() -> None:
    groups = np.random.default_rng(1).integers(50, size=300)
    fold = folds_of(groups, 5, 1)
    assert all(len(set(fold[groups == group].tolist())) == 1 for group in range(50))
    of_groups = [len(set(groups[fold == number].tolist())) for number in range(5)]
    assert of_groups == [10] * 5
    assert sorted(set(folds_of(np.array([4, 4, 9]), 5, 1).tolist())) == [0, 1]
    assert not np.array_equal(fold, folds_of(groups, 5, 2))


def units_of(records: Records, units: np.ndarray) -> UnitRecords:
    first = np.zeros(len(records), bool)
    first[np.unique(units, return_index=True)[1]] = True
    return UnitRecords(records, units, first, np.zeros(len(records), bool), units)


def test_a_record_is_predicted_by_a_model_that_saw_none_of_its_person(monkeypatch) -> None:
    """Labels are noise but the same in all of a person's records, which have the same features."""
    random = np.random.default_rng(5)
    units = np.repeat(np.arange(40), 3)
    features = random.normal(0, 1, (40, 3)).astype(np.float32)[units]
    records = Records(features, random.integers(2, size=40)[units])
    seen: list[tuple[set, set]] = []
    train = home_model.home_predictor

    def note(how, inner, groups, tick):
        assert len(set(groups.tolist())) == len(inner)  # one record of each person
        seen.append((set(groups.tolist()), set()))
        return train(how, inner, groups, tick)

    monkeypatch.setattr("client_app.worth.judgement.home_predictor", note)
    outputs = out_of_fold(HOW, units_of(records, units), 4, lambda: None)
    assert [len(groups) for groups, _ in seen] == [30] * 4
    assert set(outputs) == {CONSTANT, HOME}
    fold = folds_of(units, 4, HOW.seed)
    for number, (groups, _) in enumerate(seen):
        assert not groups & set(units[fold == number].tolist())


def test_one_unit_cannot_be_cross_validated() -> None:
    every = units_of(drawn(3, 1), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="two units at least"):
        out_of_fold(HOW, every, 5, lambda: None)
