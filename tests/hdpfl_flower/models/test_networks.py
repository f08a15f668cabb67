"""Networks: their sizes, their seeds, and what is refused with the remedy."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of, select
from hdpfl_flower.models.task import Task

MNIST, HEART = Task.classification((1, 28, 28), 10), Task.classification((28,), 2)


def size(spec: str, task: Task) -> int:
    return sum(p.numel() for p in build_model(spec, task, 0).parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("spec", "task", "parameters"),
    [
        ("logreg", MNIST, 784 * 10 + 10),
        ("logreg", HEART, 28 + 1),
        ("mlp", HEART, 28 * 64 + 64 + 64 + 1),
        ("mlp:32:16", MNIST, 784 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10),
        ("cnn", MNIST, 28_938),  # Robust-HDP, section 5
        ("resnet18", Task.classification((3, 32, 32), 10), 11_181_642),  # torchvision's, 10 classes
    ],
)
def test_a_model_has_its_parameters(spec: str, task: Task, parameters: int) -> None:
    assert size(spec, task) == parameters
    output = build_model(spec, task, 0)(torch.zeros(2, *task.input_shape))
    assert output.shape == (2, task.outputs)


def test_the_seed_alone_decides_and_torchs_own_generator_stays() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, same, other = (arrays_of(build_model("mlp:8", HEART, seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("spec", "task", "words"),
    [
        ("vgg", MNIST, "model 'vgg' is not known; choose logreg, mlp:WIDTH, cnn, resnet18 or"),
        ("logreg:3", MNIST, "model 'logreg' takes no width"),
        ("mlp:0", MNIST, "needs widths of at least 1"),
        ("cnn", HEART, "needs images"),
        ("resnet18", HEART, "needs images"),
        ("no.such.module:build", HEART, "there is no module 'no.such.module' in /"),
        (f"{__name__}:nothing", HEART, "test_networks.py has no function 'nothing'"),
        (f"{__name__}:raises", HEART, "its function raised ValueError"),
        (f"{__name__}:no_module", HEART, "returned no torch.nn.Module"),
        (f"{__name__}:frozen", HEART, "has no trainable parameter"),
    ],
)
def test_what_cannot_be_built_is_one_clear_line(spec: str, task: Task, words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        build_model(spec, task, 0)
    assert "\n" not in str(caught.value)
    assert "PATIENT-123" not in str(caught.value)


def raises(task: Task) -> nn.Module:
    raise ValueError("PATIENT-123")


def no_module(task: Task) -> object:
    return "a text"


def frozen(task: Task) -> nn.Module:
    return nn.Linear(28, 1).requires_grad_(False)


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(28), nn.SyncBatchNorm(28), nn.InstanceNorm1d(28, track_running_stats=True)],
)
def test_batch_statistics_are_refused(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[__name__], "made", lambda _: nn.Sequential(layer, nn.Linear(28, 1)), False
    )
    with pytest.raises(ModelError, match=r"mixes the records of a batch.*use GroupNorm"):
        build_model(f"{__name__}:made", HEART, 0)


# --- head and body of a model: ranges of its flat vector, from its public spec alone


IMAGE = Task.classification((1, 28, 28), 10)
TABLE = Task.classification((5,), 4)
NUMBER = Task.regression((5,))
HERE = __name__


def without_bias(task: Task) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(task.input_shape[0], 6), nn.Linear(6, task.outputs, bias=False)
    )


def scaled(task: Task) -> nn.Module:
    """Return a network whose last layer with parameters is none that returns the outputs."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(task.input_shape[0], 6), nn.Linear(6, task.outputs),
        nn.Unflatten(1, (task.outputs, 1)), nn.GroupNorm(1, task.outputs), nn.Flatten(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "task", "head"),
    [
        ("mlp:32", IMAGE, 330),
        ("mlp:8:6", TABLE, 28),
        ("mlp:8", NUMBER, 9),
        ("cnn", IMAGE, None),
        (f"{HERE}:without_bias", TABLE, 24),
    ],
)
def test_the_head_is_the_last_layer(spec: str, task: Task, head: int | None) -> None:
    parts = parts_of(spec, task)
    model = build_model(spec, task, seed=1)
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    size = sum(p.numel() for p in last.parameters())
    assert size == (head or size)
    start = parts.size - size
    assert (parts.head, parts.body) == (slice(start, parts.size), slice(0, start))
    whole = arrays_of(model)
    assert parts.size == flatten(whole).size
    sent = {part: select(whole, spec, task, part) for part in ("head", "body")}
    assert set(sent["head"]) | set(sent["body"]) == set(whole)
    for part, arrays in sent.items():
        np.testing.assert_array_equal(flatten(arrays), flatten(whole)[parts.of(part)])
    assert select(whole, spec, task, "") is whole
    assert parts.of("") == slice(0, parts.size)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("logreg", "would leave nothing to share; take one with other layers, such as mlp:32"),
        (f"{HERE}:scaled", "1.weight, 1.bias, 2.weight, 2.bias, 4.weight, 4.bias"),
    ],
)
def test_a_model_without_a_head_is_refused_with_its_parameters(spec: str, words: str) -> None:
    with pytest.raises(ModelError, match="'model' = ") as error:
        parts_of(spec, TABLE)
    assert words in str(error.value)
    assert "leave out a personal part" in str(error.value)
    for name in arrays_of(build_model(spec, TABLE, seed=1)):
        assert name in str(error.value)
