"""Vectors of the message on coefficients: length, independence of rows, score and information."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, hessian

from hdpfl_flower.data import record_moments, record_scores
from hdpfl_flower.data.record_scores import EMPTY, Design, design_of
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.losses import total_loss
from hdpfl_flower.models.networks import Arrays, arrays_of, build_model
from hdpfl_flower.models.task import Records, Task
from studies.intervals.federations import LABELS, design

LOSSES = tuple(LABELS)


def model(of: Design, scale: float = 1.0, seed: int = 1) -> Arrays:
    return {n: scale * a for n, a in arrays_of(build_model("logreg", of.task, seed)).items()}


def some_records(of: Design, count: int, seed: int = 1, spread: float = 1.0) -> Records:
    draws = np.random.default_rng(seed)
    numbers = spread * draws.normal(size=(count, 3))
    groups = np.eye(2)[draws.integers(2, size=count)], np.eye(3)[draws.integers(3, size=count)]
    features = np.hstack([numbers, *groups]).astype(np.float32)
    if of.task.loss == "squared":
        return Records(features, draws.uniform(size=count).astype(np.float32))
    return Records(features, draws.integers(of.task.target_values, size=count))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e38, np.nan, np.inf], ids=str)
def test_a_record_moves_the_sum_by_one_at_most(loss: str, scale: float) -> None:
    of = design(loss, wide=False)
    records = some_records(of, 40, spread=3.0)
    odd = np.array([[np.inf, -np.inf, np.nan, 1, 0, 0, 1, 0], [3e38] * 8], np.float32)
    features = np.concatenate([records.features, odd])
    targets = np.concatenate([records.targets, records.targets[:2]])
    whole = of.sum(of.start(model(of, scale)), Records(features, targets))
    for row in (0, 1, 2, 40, 41):
        rest = np.delete(np.arange(42), row)
        fewer = of.sum(of.start(model(of, scale)), Records(features[rest], targets[rest]))
        assert np.linalg.norm(whole - fewer) <= 1


@pytest.mark.parametrize("wide", [False, True], ids=["typical", "bounds"])
@pytest.mark.parametrize("loss", LOSSES)
def test_hardly_a_record_is_clipped(loss: str, wide: bool) -> None:
    of, found = design(loss, wide), list[float]()
    for seed in range(30):
        spread, scale = (0.1, 1.0, 3.0)[seed % 3], 3.0 ** (seed % 5)
        reach = 1 if wide else 3
        records = some_records(of, 200, seed, spread)
        records.features[:, :3] = records.features[:, :3].clip(-reach, reach)
        start = of.start(model(of, scale, seed))
        found += (np.linalg.norm(of.vectors(start, records), axis=1) / of.bound).tolist()
    assert 0.4 < max(found) < 1.1
    assert np.mean(np.array(found) > 1) < 0.01


@pytest.mark.parametrize("loss", LOSSES)
def test_the_vector_of_a_record_does_not_depend_on_others(loss: str) -> None:
    of = design(loss, wide=False)
    records, start = some_records(of, 67), of.start(model(of, 10.0))
    together = of.vectors(start, records)
    for row in range(67):
        alone = of.vectors(start, records.take(np.array([row])))
        np.testing.assert_array_equal(alone[0], together[row])
    np.testing.assert_array_equal(of.vectors(start, records.take(np.arange(5, 20))), together[5:20])


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("columns", [20, 60])
def test_a_record_of_a_chunk_of_its_own_moves_the_sum_by_one(
    monkeypatch: pytest.MonkeyPatch, loss: Any, columns: int
) -> None:
    """Weights that cancel show in which order the numbers of a row are added."""
    of = design_of("", Task((columns,), 1, loss))
    monkeypatch.setattr(record_moments, "_NUMBERS", 4 * (of.size - EMPTY))  # chunks of 4 records
    start = np.zeros(of.numbers)
    start[[1, 2, 9, 10]] = 1e20, 200, -1e20, -100
    worst = 0.0
    for place, sign, label, last in itertools.product((1, 9), (1, -1), (0, 1), (0, 1)):
        x = np.full((5, columns), 0.5, np.float32)
        x[0, [0, 1, 8, 9]] = 0
        x[0, place] = sign / 2
        y = np.array([label] * 4 + [last], np.int64 if loss == "logistic" else np.float32)
        gap = of.sum(start, Records(x, y)) - of.sum(start, Records(x[1:], y[1:]))
        worst = max(worst, float(np.linalg.norm(gap)))
    assert 0.1 < worst <= 1


@pytest.mark.parametrize("loss", LOSSES)
def test_score_and_information_are_derivatives_of_the_training_loss(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_scores, "FOLLOWED", np.inf)
    monkeypatch.setattr(record_scores, "MOST_RESIDUAL", 50.0)
    of = design(loss, wide=False)
    records, t = some_records(of, 20, spread=0.3), of.task.outputs
    start = torch.tensor(np.random.default_rng(2).normal(size=of.numbers) / 3)
    x = torch.tensor(records.features[:, [c.place for c in of.coefficients]]).double()
    assert float((1 + x.square().sum(1)).max()) < of.reach**2, "no record counts less"
    targets = torch.tensor(records.targets)

    def lost(at: torch.Tensor) -> torch.Tensor:
        return total_loss(of.task, at[:t] + (x @ at[t:]).unsqueeze(1), targets)

    total = of.vectors(start.numpy(), records).sum(0)
    p, (factor, _) = of.numbers, of.factors
    score = of.residual * total[:p]
    np.testing.assert_allclose(score, -grad(lost)(start).numpy(), atol=1e-6)
    information = of.matrix(total[p : p + len(of.triangle[0])]) / factor
    np.testing.assert_allclose(information, hessian(lost)(start).numpy(), atol=1e-6)


def test_the_start_gives_the_models_outputs_where_no_level_is_missing() -> None:
    of = design("hazard", wide=False)
    # Coefficients are means over the intervals: of equal ones the outputs are the model's.
    arrays = model(of)
    weights = next(iter(arrays.values()))
    weights[:] = weights[0]
    records = some_records(of, 9)
    start = of.start(arrays)
    x = records.features[:, [c.place for c in of.coefficients]]
    biases = [*arrays.values()][1]
    expected = records.features @ weights.T + biases
    found = start[: of.task.outputs] + (x @ start[of.task.outputs :])[:, None]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_references_and_units_are_those_of_the_schema() -> None:
    of = design("squared", wide=True)
    assert [c.name for c in of.coefficients] == [
        "age", "bp", "bmi", "sex=m", "smoker=former", "smoker=current"
    ]  # fmt: skip
    assert [name for _, name in of.references] == ["sex=f", "smoker=never"]
    age, bp, *_ = of.coefficients
    assert (age.slope, age.per, bp.per) == (pytest.approx(1 / 35), 10, 100)
    assert of.width == 10
    assert of.size == of.numbers * (of.numbers + 2) + EMPTY


def test_tasks_without_such_coefficients_are_refused() -> None:
    with pytest.raises(DataError, match="of tables"):
        design_of("", Task.classification((1, 8, 8), 2))
    with pytest.raises(DataError, match="two classes, a number or survival"):
        design_of("", Task.classification((4,), 3))
    with pytest.raises(DataError, match="at most 100 coefficients and intercepts, and these are 1"):
        design_of("", Task.classification((100,), 2))
