"""Named data sets: read from tiny files in the real formats, scaled by public constants."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.data.run_task import NAMES, task_of
from hdpfl_flower.errors import DataError, ModelError
from hdpfl_flower.models.image_networks import import_torchvision
from hdpfl_flower.models.task import Records
from hdpfl_tools.simulation.datasets import Dataset, load_dataset


@pytest.fixture(autouse=True)
def _forget_what_was_loaded() -> None:
    load_dataset.cache_clear()


@pytest.fixture
def torchvision_datasets() -> Any:
    try:
        return import_torchvision("datasets")
    except ModelError as error:
        pytest.skip(str(error))


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write unsigned bytes in the IDX format of the MNIST files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def write_images(folder: Path, prefix: str, test: str, classes: int) -> dict[str, Any]:
    """Write a training set of 30 images and a test set of 20; return pixels and classes of both."""
    generator = np.random.default_rng(1)
    written = {}
    for kind, count in (("train", 30), (test, 20)):
        pixels = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, classes, count, dtype=np.uint8)
        write_idx(folder / f"{prefix}{kind}-images-idx3-ubyte", pixels)
        write_idx(folder / f"{prefix}{kind}-labels-idx1-ubyte", labels)
        written["train" if kind == "train" else "test"] = (pixels, labels)
    return written


def check(dataset: Dataset, name: str) -> Records:
    """Check the types and shapes that the task promises; return the test records."""
    assert dataset.task == task_of(name)
    assert dataset.owners is None
    assert dataset.test is not None
    for records in (dataset.train, dataset.test):
        assert records.features.dtype == np.float32
        assert records.features.shape == (len(records), *dataset.task.input_shape)
        assert records.features.flags.c_contiguous
        assert records.targets.dtype == np.int64
        assert records.targets.shape == (len(records),)
        assert records.targets.min() >= 0
        assert records.targets.max() < dataset.task.classes
    return dataset.test


def test_unknown_names_list_the_known_ones() -> None:
    for function in (task_of, lambda name: load_dataset(name, "")):
        with pytest.raises(DataError, match=r"'dataset' is 'mnits'; choose .*") as caught:
            function("mnits")
        assert all(name in str(caught.value) for name in NAMES)


def test_digits_hold_out_the_last_writers() -> None:
    from sklearn.datasets import load_digits

    dataset = load_dataset("digits", "")
    test = check(dataset, "digits")
    assert (len(dataset.train), len(test)) == (1437, 360)
    bunch = load_digits()
    np.testing.assert_array_equal(dataset.train.features[:, 0] * 16, bunch.images[:1437])
    np.testing.assert_array_equal(test.features[:, 0] * 16, bunch.images[1437:])
    np.testing.assert_array_equal(test.targets, bunch.target[1437:])
    assert np.bincount(test.targets).min() >= 30  # every digit is tested
    assert load_dataset("digits", "") is dataset


@pytest.mark.parametrize(
    ("name", "folder", "prefix", "test", "classes"),
    [
        ("mnist", "MNIST", "", "t10k", 10),
        ("fashion-mnist", "FashionMNIST", "", "t10k", 10),
        ("emnist", "EMNIST", "emnist-balanced-", "test", 47),
    ],
)
def test_idx_files_become_scaled_images(
    tmp_path: Path,
    torchvision_datasets: Any,
    name: str,
    folder: str,
    prefix: str,
    test: str,
    classes: int,
) -> None:
    written = write_images(tmp_path / folder / "raw", prefix, test, classes)
    dataset = load_dataset(name, str(tmp_path))
    check(dataset, name)
    for records, kind in ((dataset.train, "train"), (dataset.test, "test")):
        pixels, labels = written[kind]
        if name == "emnist":  # stored transposed, shown upright
            pixels = pixels.transpose(0, 2, 1)
        np.testing.assert_array_equal(records.targets, labels)
        np.testing.assert_allclose(
            records.features[:, 0], (pixels / 255 - 0.1307) / 0.3081, rtol=0, atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "reader", "train", "test", "key"),
    [
        ("cifar10", "CIFAR10", "cifar-10-batches-py/data_batch_1", "test_batch", "labels"),
        ("cifar100", "CIFAR100", "cifar-100-python/train", "test", "fine_labels"),
    ],
)
def test_cifar_batches_become_scaled_images(
    tmp_path: Path,
    torchvision_datasets: Any,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    reader: str,
    train: str,
    test: str,
    key: str,
) -> None:
    # Tiny files cannot have the checksums of the real ones; torchvision then checks presence only.
    folder, first = train.split("/")
    source = getattr(torchvision_datasets, reader)
    meta = source.meta | {"md5": None}
    monkeypatch.setattr(source, "train_list", [[first, None]])
    monkeypatch.setattr(source, "test_list", [[test, None]])
    monkeypatch.setattr(source, "meta", meta)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / meta["filename"]).write_bytes(pickle.dumps({meta["key"]: ["a"]}))
    generator = np.random.default_rng(2)
    rows = generator.integers(0, 256, (6, 3 * 32 * 32), dtype=np.uint8)
    for file in (first, test):
        content = {"data": rows, key: [5, 4, 3, 2, 1, 0]}
        (tmp_path / folder / file).write_bytes(pickle.dumps(content))
    dataset = load_dataset(name, str(tmp_path))
    check(dataset, name)
    np.testing.assert_array_equal(dataset.train.targets, [5, 4, 3, 2, 1, 0])
    # The format: a row is the red, the green and the blue plane, each row by row.
    expected = (rows.reshape(6, 3, 32, 32) / 255 - 0.5) / 0.5
    np.testing.assert_allclose(dataset.train.features, expected, rtol=0, atol=1e-6)
