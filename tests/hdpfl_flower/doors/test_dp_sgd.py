"""One private training of any torch model: its noise, its data, its refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hdpfl_flower import Steps, calibrate, dp_sgd
from hdpfl_flower.errors import DataError, ModelError, TermsError
from tests.cases import sampled

GIVEN = {"epsilon": 2.0, "delta": 1e-5, "records": 200, "batch_size": 20, "steps": 10}


def data(classes: int = 3, width: int = 5, rows: int = 200) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, width, generator=draw)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long() * (classes > 2))


def test_the_update_has_the_noise_of_the_plan() -> None:
    """Without records all of the update is noise: √k·η·z·C/b in each coordinate."""
    model = nn.Linear(500, 4)
    nothing = TensorDataset(torch.full((5, 500), math.nan), torch.zeros(5, dtype=torch.long))
    done = dp_sgd(model, nothing, **GIVEN, learning_rate=0.3)  # type: ignore[arg-type]
    z = calibrate([Steps(0.1, 10)], 2.0, 1e-5)
    assert done.noise_multiplier == z
    assert done.epsilon <= 2.0
    std = math.sqrt(10) * 0.3 * z / 20
    moved = (done.model.weight - model.weight).detach().numpy().ravel()
    assert stats.kstest(moved / std, "norm").pvalue > 1e-6
    for wrong in (0.5, 2.0):
        assert stats.kstest(moved / (wrong * std), "norm").pvalue < 1e-6


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_classes_are_learned(outputs: int) -> None:
    """One logit, one output a class."""
    several = data(max(outputs, 2))
    given = {**GIVEN, "epsilon": math.inf, "steps": 100}
    done = dp_sgd(nn.Linear(5, outputs), several, **given, learning_rate=1.0)
    x, y = several.tensors
    found = done.model(x)
    named = found.argmax(1) if outputs > 1 else (found[:, 0] > 0).long()
    assert (named == y).float().mean() > 0.7
    assert done.epsilon == math.inf


def test_numbers_are_learned() -> None:
    x = torch.randn(200, 2)
    done = dp_sgd(
        nn.Linear(2, 1),
        TensorDataset(x, x[:, 0] * 0.5),
        **{**GIVEN, "epsilon": math.inf, "steps": 200},
        loss="squared",
    )
    assert torch.allclose(done.model.weight, torch.tensor([[0.5, 0.0]]), atol=0.1)


def test_the_model_that_is_given_stays_as_it_is() -> None:
    model = nn.Linear(5, 3)
    before = model.weight.detach().clone()
    dp_sgd(model, data(), **GIVEN)  # type: ignore[arg-type]
    assert torch.equal(model.weight, before)


def test_a_label_of_no_class_contributes_nothing() -> None:
    x, y = data().tensors
    wrong = TensorDataset(x, y + 100)
    done = dp_sgd(nn.Linear(5, 3), wrong, **{**GIVEN, "epsilon": math.inf})
    assert np.isfinite(done.model.weight.detach().numpy()).all()


def test_frozen_parameters_stay() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    model[0].requires_grad_(requires_grad=False)
    done = dp_sgd(model, data(), **GIVEN)  # type: ignore[arg-type]
    assert torch.equal(done.model[0].weight, model[0].weight)  # type: ignore[index]
    assert not torch.equal(done.model[1].weight, model[1].weight)  # type: ignore[index]


class Items(Dataset[object]):
    """Pairs, of which those at some rows are others; a function is called."""

    def __init__(self, pairs: TensorDataset, others: dict[int, Any]) -> None:
        self.pairs, self.others = pairs, others

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, row: int) -> object:
        item = self.others.get(row, self.pairs[row])
        return item() if callable(item) else item


def raising(reason: BaseException) -> Any:
    def item() -> object:
        raise reason

    return item


POINT = torch.zeros(5)
ODD: dict[str, Any] = {
    "a target that is not a number": (POINT, math.nan),
    "a target between two classes": (POINT, 0.5),
    "a target of a class beyond": (POINT, 3),
    "a target below": (POINT, -1),
    "a target of text": (POINT, "PATIENT-123"),
    "no target": (POINT, None),
    "a complex target": (POINT, 1j),
    "two targets": (POINT, torch.zeros(2)),
    "a huge target": (POINT, 10**400),
    "features of another shape": (torch.zeros(6), 0),
    "features of more dimensions": (torch.zeros(1, 5), 0),
    "a number as features": (1.0, 0),
    "ragged features": ([[1.0], [1.0, 2.0]], 0),
    "features of text": (["a"] * 5, 0),
    "features of objects": (np.array([None] * 5), 0),
    "features that are not finite": (torch.full((5,), math.inf), 0),
    "features beyond float32": (np.full(5, 1e300), 0),
    "three things": (POINT, 0, 0),
    "one thing": POINT[:1],
    "nothing": None,
    "an item that raises": raising(KeyError("PATIENT-123")),
    "an item that leaves": raising(SystemExit()),
    "an item without memory": raising(MemoryError()),
}
"""Items that are no record of the task."""
READABLE: dict[str, Any] = {
    "float64": (POINT.double() + 1, 1),
    "half precision": (POINT.half() + 1, 1),
    "bfloat16": (POINT.bfloat16() + 1, 1),
    "whole numbers": (torch.ones(5, dtype=torch.int8), 1),
    "a list": ([1.0] * 5, 1),
    "an array": (np.ones(5), np.float16(1)),
    "with a gradient": (torch.ones(5, requires_grad=True), torch.tensor([1.0])),
    "a truth": (POINT + 1, True),
    "a float": (POINT + 1, 1.0),
}
"""Items that are the record of ones in class 1."""


def trained(dataset: Any, outputs: int = 3, **changes: Any) -> torch.Tensor:
    """Return what the training adds to a model, without noise, of every record in each step."""
    torch.manual_seed(0)
    model = nn.Linear(5, outputs)
    given = {**GIVEN, "epsilon": math.inf, "batch_size": 200, "steps": 3, **changes}
    done = dp_sgd(model, dataset, **given)  # type: ignore[arg-type]
    return torch.cat(
        [(done.model.weight - model.weight).flatten(), done.model.bias - model.bias]
    ).detach()  # type: ignore[operator, union-attr]


@lru_cache
def trained_by_others(outputs: int, loss: str) -> torch.Tensor:
    x, y = data(max(outputs, 2), rows=40).tensors
    others = [row for row in range(40) if row not in (0, 17)]
    return trained(TensorDataset(x[others], y[others]), outputs, loss=loss)


QUICK = ("features of another shape", "an item that raises", "a target of text")


@pytest.mark.parametrize("case", sampled(ODD, QUICK))
def test_an_odd_item_leaves_the_other_records(case: str) -> None:
    """With whole numbers and a NaN among the targets the loss was another one for all records."""
    items = Items(data(rows=40), {0: ODD[case], 17: ODD[case]})
    expected = trained_by_others(3, "cross-entropy")
    assert expected.norm() > 0.01
    assert (trained(items) - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_many_odd_items_leave_the_other_records(loss: str) -> None:
    pairs, targets = data(2, rows=40), ("a target between", "a target of a class", "a target below")
    odd = [item for name, item in ODD.items() if loss != "squared" or not name.startswith(targets)]
    x, y = pairs.tensors
    longer = TensorDataset(torch.cat([x[1:17], x[18:], x]), torch.cat([y[1:17], y[18:], y]))
    items = Items(longer, {row: odd[row % len(odd)] for row in range(38, 78)})
    expected = trained_by_others(1, loss)
    assert (trained(items, 1, loss=loss) - expected).norm() <= 1e-5 * expected.norm()


def test_the_types_of_items_change_nothing() -> None:
    pairs, one = data(rows=40), (torch.ones(5), torch.tensor(1))
    usual = trained(Items(pairs, dict.fromkeys(range(len(READABLE)), one)))
    assert torch.equal(trained(Items(pairs, dict(enumerate(READABLE.values())))), usual)


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_without_a_record_a_model_of_noise_comes(rows: int, loss: str) -> None:
    """Of no item, and of items that are none: an error would tell of the last record."""
    empty = Items(
        TensorDataset(torch.zeros(rows, 5), torch.zeros(rows)), dict.fromkeys(range(rows))
    )
    model = nn.Linear(5, 1)
    done = dp_sgd(model, empty, **GIVEN, loss=loss)  # type: ignore[arg-type]
    moved = (done.model.weight - model.weight).detach().numpy().ravel() / noise_std()
    assert 0 < np.abs(moved).max() < stats.norm.isf(1e-10)


def noise_std() -> float:
    """Return that of the update of :data:`GIVEN` with the usual rate, η·z·C·√k/b."""
    return math.sqrt(10) * 0.1 * calibrate([Steps(0.1, 10)], 2.0, 1e-5) / 20


class Picky(nn.Sequential):
    """Raises on a batch with a record that no trial of an engine has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs."""
        if (x == 0.3125).all(1).any():
            raise ValueError("PATIENT-123")
        return super().forward(x)  # type: ignore[no-any-return]


def test_a_record_on_which_the_model_raises_leaves_the_others() -> None:
    pairs, odd = data(rows=40), (torch.full((5,), 0.3125), 1)
    x, y = pairs.tensors

    def moved(dataset: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = Picky(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        done = dp_sgd(model, dataset, **{**GIVEN, "epsilon": math.inf, "batch_size": 200})
        return torch.cat([p.flatten() for p in done.model.parameters()]).detach()

    others = moved(TensorDataset(x[1:], y[1:]))
    assert torch.allclose(moved(Items(pairs, {0: odd})), others, atol=1e-5)


def test_one_record_does_not_choose_the_loss_of_all() -> None:
    """A NaN among 400 whole numbers: the squared loss would move the model another way."""
    x, y = torch.ones(400, 5), torch.zeros(400)
    one_more = Items(
        TensorDataset(torch.ones(401, 5), torch.cat([y, torch.tensor([math.nan])])), {}
    )
    usual = trained(TensorDataset(x, y.long()), 1, batch_size=400, records=400)
    whole = Items(one_more.pairs, {row: (x[row], 0) for row in range(400)})
    for more in (one_more, whole):
        assert torch.allclose(trained(more, 1, batch_size=400, records=400), usual, atol=1e-6)


class Endless(IterableDataset[object]):
    def __iter__(self) -> Iterator[object]:
        yield POINT, 0


class Unsized(Dataset[object]):
    def __getitem__(self, row: int) -> object:
        return POINT, 0


@pytest.mark.parametrize("wrong", [Endless(), Unsized()])
def test_what_is_no_data_set_of_rows_is_refused(wrong: Dataset[object]) -> None:
    with pytest.raises(DataError, match="map-style"):
        dp_sgd(nn.Linear(5, 3), wrong, **GIVEN)  # type: ignore[arg-type]


def test_the_shape_is_named_or_the_models() -> None:
    images = TensorDataset(torch.rand(40, 1, 4, 4), torch.arange(40) % 3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(ModelError, match=r"give their shape, such as shape=\(1, 28, 28\)"):
        dp_sgd(model, images, **GIVEN)  # type: ignore[arg-type]
    given = {**GIVEN, "epsilon": math.inf, "shape": (1, 4, 4)}
    done = dp_sgd(model, images, **given)  # type: ignore[arg-type]
    assert not torch.equal(done.model[1].weight, model[1].weight)  # type: ignore[index]


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(TermsError, match="cross-entropy, squared"):
        dp_sgd(nn.Linear(5, 3), data(), **GIVEN, loss="hinge")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), "mixes the records"),
        (nn.Sequential(nn.Linear(5, 4), nn.Linear(5, 3)), "fails on a batch of zeros"),
        (nn.Linear(5, 3).double(), "fails on a batch of zeros"),
        (nn.Sequential(nn.Linear(5, 3), nn.Flatten(0)), "outputs"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        dp_sgd(model, data(), **GIVEN)  # type: ignore[arg-type]
