"""A user's own data set: what is read, what is found of the task, and every mistake in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Task
from hdpfl_tools.simulation.datasets import Dataset
from hdpfl_tools.simulation.own_data.dataset import dataset_of, own_source, with_own_task
from hdpfl_tools.simulation.scenarios.partitions import rows_of_sites

X = np.arange(60.0).reshape(20, 3)
CLASSES = np.arange(20) % 3
SURVIVAL = np.stack([np.arange(20) % 4, np.arange(20) % 2], axis=1)
MODULE = iter(range(1000))


def config_of(path: Path, arrays: dict[str, Any], **keys: object) -> RunConfig:
    np.savez(path / "own.npz", **arrays)
    found = with_own_task({"dataset": "file:own.npz", **keys}, path)
    return RunConfig.parse(found)


def data_of(path: Path, arrays: dict[str, Any], **keys: object) -> Dataset:
    return dataset_of(config_of(path, arrays, **keys).terms, "")


@pytest.mark.parametrize(
    ("y", "keys", "task"),
    [
        (CLASSES, {}, Task.classification((3,), 3)),
        (CLASSES % 2, {}, Task.classification((3,), 2)),
        (CLASSES, {"task": {"kind": "classification", "classes": 5}}, Task.classification((3,), 5)),
        (CLASSES.astype(float), {"task": {"kind": "classification"}}, Task.classification((3,), 3)),
        (CLASSES, {"task": {"kind": "regression"}}, Task.regression((3,))),
        (CLASSES + 0.5, {}, Task.regression((3,))),
        (SURVIVAL, {}, Task.survival((3,), 4)),
        (
            SURVIVAL.astype(float),
            {"task": {"kind": "survival", "intervals": 9}},
            Task.survival((3,), 9),
        ),
    ],
)
def test_the_task_is_found_and_stands_in_the_terms(
    tmp_path: Path, y: np.ndarray, keys: dict[str, object], task: Task
) -> None:
    data = data_of(tmp_path, {"x": X, "y": y}, **keys)
    assert data.task == task
    assert data.train.features.dtype == np.float32
    assert data.train.targets.dtype == (np.float32 if task.loss == "squared" else np.int64)
    if task.intervals:
        assert data.train.targets[:4].tolist() == [0, 3, 4, 7]


def test_every_fifth_record_of_each_owner_is_the_test(tmp_path: Path) -> None:
    owner = np.array(["b"] * 10 + ["a"] * 5 + ["b"] * 5)
    data = data_of(tmp_path, {"x": X, "y": CLASSES, "owner": owner})
    assert data.owners is not None
    assert data.test.features[:, 0].tolist() == X[[4, 9, 14, 19], 0].tolist()
    assert data.test_owners.tolist() == [1, 1, 0, 1]
    terms = config_of(tmp_path, {"x": X, "y": CLASSES, "owner": owner}).terms
    rows = rows_of_sites(terms.dataset, "", "natural", 1, 2, own_source(terms))
    assert [len(part) for part in rows] == [4, 12]


def test_a_test_set_is_taken_as_it_is(tmp_path: Path) -> None:
    arrays = {"x": X, "y": CLASSES, "x_test": X[:2], "y_test": CLASSES[:2]}
    owners = {"owner": np.arange(20) // 10, "owner_test": np.array([1, 0])}
    data = data_of(tmp_path, arrays | owners)
    assert (len(data.train), len(data.test or ())) == (20, 2)
    assert data.test_owners.tolist() == [1, 0]
    one = data_of(tmp_path, arrays | {"x": X[:1], "y": CLASSES[:1]})
    assert len(one.train) == 1


@pytest.mark.parametrize(
    ("arrays", "keys", "words"),
    [
        ({}, {}, "has no array 'x'; it holds none"),
        ({"x": X}, {}, "has no array 'y'; it holds x"),
        ({"x": X, "y": CLASSES, "x_test": X}, {}, "only one of 'x_test' and 'y_test'"),
        ({"x": X[:0], "y": CLASSES[:0]}, {}, "(0, 3)"),
        ({"x": X[:1], "y": CLASSES[1:2]}, {}, "holds 1 records and no test set"),
        ({"x": X, "y": CLASSES * 0}, {}, "holds only one class"),
        ({"x": X, "y": -(CLASSES % 2)}, {}, "numbers below 0; classes are counted from 0"),
        ({"x": X, "y": CLASSES - 1}, {}, "7 of 20 invalid targets: they must be whole numbers"),
        (
            {"x": X, "y": CLASSES},
            {"task": {"kind": "classification", "classes": 2}},
            "6 of 20 invalid targets",
        ),
        ({"x": X, "y": CLASSES[:4]}, {}, "'y' has the shape (4,); it must have (20,)"),
        (
            {"x": X, "y": CLASSES},
            {"task": {"kind": "classification", "shape": "4"}},
            "'x' has the shape (20, 3)",
        ),
        ({"x": X[:, 0], "y": CLASSES}, {}, "must have one row for each record"),
        (
            {"x": np.where(X == 7, np.nan, X), "y": CLASSES},
            {},
            "not finite, or too large for float32, in",
        ),
        ({"x": X * 1e300, "y": CLASSES}, {}, "too large for float32"),
        ({"x": X, "y": np.full(20, np.nan)}, {}, "20 of 20 invalid targets: they must be fin"),
        (
            {"x": X, "y": CLASSES * np.nan},
            {"task": {"kind": "classification", "classes": 3}},
            "20 of 20 invalid",
        ),
        (
            {"x": X, "y": np.array([np.nan] * 20)},
            {"task": {"kind": "classification"}},
            "not finite",
        ),
        ({"x": X, "y": CLASSES.astype(object)}, {}, "holds Python objects"),
        ({"x": X, "y": CLASSES}, {"task": {"kind": "survival"}}, "'y' must have the shape (n, 2)"),
        ({"x": X, "y": SURVIVAL * 3}, {}, "the last interval observed, 0 to 9, and 0 or 1"),
        ({"x": X, "y": CLASSES, "owner": [1]}, {}, "'owner' has the shape (1,)"),
        ({"x": X, "y": CLASSES}, {"schema": "heart"}, "has no 'schema'"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(
    tmp_path: Path, arrays: dict[str, Any], keys: dict[str, object], words: str
) -> None:
    with pytest.raises(DataError) as caught:
        data_of(tmp_path, arrays, **keys)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "own.npz" in str(caught.value)


@pytest.fixture(name="own_module")
def module_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def written(text: str) -> str:
        name = f"own_data_of_a_test_{next(MODULE)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return written


HEAD = (
    "import numpy as np\nimport torch\nfrom torch.utils.data import TensorDataset, Dataset\n"
    "x, y = torch.arange(60.0).reshape(20, 3), torch.arange(20) % 3\n"
)


@pytest.mark.parametrize(
    ("body", "test"),
    [
        ("def load():\n    return TensorDataset(x, y), TensorDataset(x[:2], y[:2])", 2),
        ("def load():\n    return TensorDataset(x, y)", 4),
        (
            "class Own(Dataset):\n    def __len__(self):\n        return 20\n"
            "    def __getitem__(self, i):\n        return x[i].numpy(), int(y[i])\n"
            "def load():\n    return Own(), None",
            4,
        ),
        (
            "from hdpfl_flower.models.task import Records\n"
            "def load():\n    return Records(x.numpy(), y.numpy())",
            4,
        ),
        (
            "from hdpfl_flower.models.task import Records, Task\n"
            "from hdpfl_tools.simulation.datasets import Dataset as Ours\n"
            "def load():\n    r = Records(x.numpy(), y.numpy())\n"
            "    return Ours(Task.classification((3,), 3), r, r, None)",
            20,
        ),
    ],
)
def test_a_function_returns_any_of_these(
    own_module: Callable[[str], str], tmp_path: Path, body: str, test: int
) -> None:
    name = own_module(HEAD + body)
    terms = RunConfig.parse(with_own_task({"dataset": f"{name}:load"}, tmp_path)).terms
    data = dataset_of(terms, "")
    assert data.task == Task.classification((3,), 3)
    assert len(data.test or ()) == test
    expected = TensorDataset(torch.arange(60.0).reshape(20, 3))[0][0]
    np.testing.assert_array_equal(data.train.features[0], expected.numpy())
