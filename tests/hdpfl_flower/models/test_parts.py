"""Head and body of a model: ranges of its flat vector, from its public spec alone."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from hdpfl_flower.errors import ModelError
from hdpfl_flower.models.networks import arrays_of, build_model, flatten
from hdpfl_flower.models.parts import parts_of, select
from hdpfl_flower.models.task import Task

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
