"""What a model's name can cost: its grammar, and its size before any of it takes memory."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models import networks as models
from hdpfl_flower.models.networks import (
    MAX_MODEL_MB,
    arrays_of,
    build_model,
    check_name,
    layout_of,
    megabytes_of,
    size_of,
)
from hdpfl_flower.models.task import Task

MNIST, HEART = Task.classification((1, 28, 28), 10), Task.classification((28,), 2)
"""As wide as a schema may be."""


@pytest.mark.parametrize(
    "spec",
    [
        *("mlp:1000000000", "mlp:10000000", "mlp:" + "9" * 5000, "mlp:" + ":".join(["1"] * 33)),
        *("mlp:007", "mlp:0", "mlp:-5", "mlp:+5", "mlp:1_000", "mlp: 5", "mlp:5\n", "mlp:"),
        *("mlp:5:", "mlp:²", "mlp:٣٢", "mlp:1e9"),  # Arabic digits, which int() reads as 32
        *("logreg:", "logreg:5", "", "vgg", "a b:c", "os.:system", "os:system()"),
    ],
)
def test_an_absurd_name_is_one_short_line(spec: str) -> None:
    begun = time.monotonic()
    for ask in (check_name, lambda name: build_model(name, HEART, 0)):
        with pytest.raises(ModelError) as caught:
            ask(spec)
        text = str(caught.value)
        assert len(text) < 300
        assert text.isprintable()
        assert text.isascii()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("spec", "task"),
    [("logreg", MNIST), ("mlp", HEART), ("mlp:7:3", MNIST), ("cnn", MNIST), ("resnet18", MNIST)],
)
def test_a_size_is_that_of_the_network(spec: str, task: Task) -> None:
    built = arrays_of(build_model(spec, task, 0))
    layout = layout_of(spec, task)
    assert list(layout) == list(built)
    assert {n: a.shape for n, a in layout.items()} == {n: a.shape for n, a in built.items()}
    assert size_of(spec, task) == sum(array.size for array in built.values())
    assert megabytes_of(spec, task) == sum(array.nbytes for array in built.values()) / 1e6
    assert not any(array.flags.writeable or any(array.strides) for array in layout.values())


def test_the_largest_model_is_at_the_limit() -> None:
    """2,048 MB hold 512,000,000 numbers; a layer of w on MNIST's pixels has 795·w + 10."""
    most = (int(MAX_MODEL_MB * 1e6 / 4) - 10) // 795
    assert megabytes_of(f"mlp:{most}", MNIST) <= MAX_MODEL_MB
    begun = time.monotonic()
    words = r"has 512,000,\d+ parameters, more than the 2,048 MB .* choose a smaller one"
    with pytest.raises(ModelError, match=words):
        build_model(f"mlp:{most + 1}", MNIST, 0)
    assert time.monotonic() - begun < 5


def test_what_is_too_large_is_built_on_meta_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []
    named = models._named

    def noted(spec: str, task: Task) -> nn.Module:
        devices.append(torch.empty(0).device.type)
        return named(spec, task)

    monkeypatch.setattr(models, "_named", noted)
    layout_of.cache_clear()
    build_model("mlp:7", HEART, 0)
    assert devices == ["meta", "cpu"]
    devices.clear()
    monkeypatch.setattr(models, "MAX_MODEL_MB", 0.0001)
    with pytest.raises(ModelError, match="choose a smaller one"):
        build_model("mlp:9", HEART, 0)
    assert devices == ["meta"]


BUILDS: list[str] = []
"""Devices that the functions below were called under."""


def plain(task: Task) -> nn.Module:
    BUILDS.append(torch.empty(0).device.type)
    return nn.Sequential(nn.Flatten(), nn.Linear(28, task.outputs))


KEPT: list[nn.Module] = []


def kept(task: Task) -> nn.Module:
    """Make one network and return it in every call."""
    KEPT.append(KEPT[0] if KEPT else plain(task))
    return KEPT[0]


def test_a_users_function_is_measured_on_meta_where_that_works() -> None:
    BUILDS.clear()
    assert size_of(f"{__name__}:plain", HEART) == 29
    assert BUILDS == ["meta"]
    torch.manual_seed(3)
    expected = arrays_of(plain(HEART))
    built = arrays_of(build_model(f"{__name__}:plain", HEART, 3))
    for name, array in built.items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_users_function_that_keeps_its_network_is_refused() -> None:
    KEPT.clear()
    with pytest.raises(ModelError, match="must make a new network in every call"):
        build_model(f"{__name__}:kept", HEART, 0)
