"""One private training of any torch model: its noise, its data, its refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from hdpfl_flower import Steps, calibrate, dp_sgd
from hdpfl_flower.errors import DataError, ModelError

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
    given = {**GIVEN, "epsilon": math.inf, "steps": 300}
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


class Broken(Dataset[object]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, row: int) -> object:
        return torch.zeros(row + 1), 0


@pytest.mark.parametrize("wrong", [Broken(), TensorDataset(torch.zeros(0, 5), torch.zeros(0))])
def test_what_is_no_data_set_of_pairs_is_refused(wrong: Dataset[object]) -> None:
    with pytest.raises(DataError, match="pairs"):
        dp_sgd(nn.Linear(5, 3), wrong, **GIVEN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3)), "mixes the records"),
        (nn.Linear(4, 3), "fails on a batch of zeros"),
        (nn.Flatten(0), "outputs"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        dp_sgd(model, data(), **GIVEN)  # type: ignore[arg-type]
