"""Head and body of a model: ranges of its flat vector, from its public spec alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten, unflatten
from hdpfl_flower.models.parts import parts_of, select
from hdpfl_flower.models.task import Task

IMAGE = Task.classification((1, 28, 28), 10)
TABLE = Task.classification((5,), 4)
NUMBER = Task.regression((5,))
HERE = __name__


def head_first(task: Task) -> nn.Module:
    """Return a network whose head is registered first."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, task.outputs)
            self.features = nn.Linear(task.input_shape[0], 6)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.out(self.features(x.flatten(1)).relu())

    return Net()


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
def test_the_head_is_the_last_layer_and_the_body_all_else(
    spec: str, task: Task, head: int | None
) -> None:
    parts = parts_of(spec, task)
    model = build_model(spec, task, seed=1)
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    size = sum(p.numel() for p in last.parameters())
    assert size == (head or size)
    assert (parts.head, parts.body) == (
        slice(parts.size - size, parts.size),
        slice(0, parts.size - size),
    )
    whole = arrays_of(model)
    assert parts.size == flatten(whole).size
    sent = {part: select(whole, spec, task, part) for part in ("head", "body")}
    assert set(sent["head"]) | set(sent["body"]) == set(whole)
    for part, arrays in sent.items():
        np.testing.assert_array_equal(flatten(arrays), flatten(whole)[parts.of(part)])
    assert select(whole, spec, task, "") is whole
    assert parts.of("") == slice(0, parts.size)


def test_a_head_that_is_registered_first_is_found() -> None:
    parts = parts_of(f"{HERE}:head_first", TABLE)
    assert (parts.head, parts.body) == (slice(0, 28), slice(28, 64))
    assert parts.names == {"out.weight", "out.bias"}


def test_the_parts_are_all_that_the_outputs_hang_on() -> None:
    """A head of zeros returns zeros, whatever the body is."""
    import torch

    model = build_model("mlp:8", TABLE, seed=2)
    vector, parts = flatten(arrays_of(model)), parts_of("mlp:8", TABLE)
    vector[parts.head] = 0
    for name, array in unflatten(vector, arrays_of(model)).items():
        dict(model.named_parameters())[name].data.copy_(torch.from_numpy(array))
    assert not model(torch.randn(3, 5)).any()


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


class _ThreeOf(nn.Module):
    """A layer of a weight, a bias and a gain, a row for each output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.gain = nn.Parameter(torch.ones(outputs))

    def forward(self, x):  # type: ignore[no-untyped-def]
        return (x @ self.weight.t() + self.bias) * self.gain


def gained(task: Task) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(task.input_shape[0], 6), _ThreeOf(6, task.outputs))


def test_a_layer_of_three_parameters_is_no_head() -> None:
    with pytest.raises(ModelError, match=r"no head apart from a body.*2\.gain"):
        parts_of(f"{HERE}:gained", TABLE)
