"""Named public data sets: a simulation's records and test set.

Downloads no file: sets that scikit-learn does not bundle lie in the folder ``data-dir``.
Scaling uses the constants written here (or in a schema of this package), never statistics of the
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.run_task import IMAGE_TASKS, task_of
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.image_networks import import_torchvision
from hdpfl_flower.models.task import Records, Task
from hdpfl_flower.system.paths import expanded

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""Names of owners 0 to 3 of the data set ``heart``."""

_DIGITS_TRAIN = 1437


@dataclass(frozen=True)
class Dataset:
    """Named data set.

    Attributes:
        task: the public shape of the problem.
        train: records that are split over the sites.
        test: public test set, None where there is none.
        owners: natural owner of each training record (a hospital), int64, shape ``(len(train),)``,
            counted from 0; None where there is none.
        test_owners: natural owner of each test record, shape ``(len(test),)``; None likewise.
    """

    task: Task
    train: Records
    test: Records | None
    owners: npt.NDArray[np.int64] | None
    test_owners: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class _Images:
    """torchvision reader and scaling of an image set: (pixel/255 − mean) / std."""

    reader: str
    mean: float
    std: float
    files: str


def _idx(reader: str, prefix: str, test: str) -> _Images:
    return _Images(
        reader,
        0.1307,
        0.3081,
        f"{reader}/raw/{prefix}{{train,{test}}}-{{images-idx3,labels-idx1}}-ubyte "
        "(unpack with: gunzip -k *.gz)",
    )


def _cifar(classes: int, files: str, archive: str) -> _Images:
    return _Images(f"CIFAR{classes}", 0.5, 0.5, f"{files} (unpack with: tar xf {archive}.tar.gz)")


_IMAGES = {
    "mnist": _idx("MNIST", "", "t10k"),
    "fashion-mnist": _idx("FashionMNIST", "", "t10k"),
    "emnist": _idx("EMNIST", "emnist-balanced-", "test"),
    "cifar10": _cifar(
        10, "cifar-10-batches-py/{data_batch_1…5,test_batch,batches.meta}", "cifar-10-python"
    ),
    "cifar100": _cifar(100, "cifar-100-python/{train,test,meta}", "cifar-100-python"),
}
"""Image sets; EMNIST is its split 'balanced', scaled like MNIST."""


def how_to_get(name: str) -> str:
    """Return the command that makes a named data set, or the place where it lies."""
    if name == "digits":
        return "scikit-learn contains it"
    if name not in _IMAGES:
        return "the folder deploy/demo of the repository contains it"
    reader, split = _IMAGES[name].reader, "'balanced', " if name == "emnist" else ""
    return (
        f'python -c "from torchvision.datasets import {reader} as D; '
        f"D('DIR', {split}download=True)\""
    )


@lru_cache(maxsize=2)
def load_dataset(name: str, data_dir: str) -> Dataset:
    """Return a named data set, cached by arguments; do not modify it.

    Args:
        name: one of

            * ``digits``: scikit-learn's 1797 digits of 8×8, pixel/16. The first 1437 train and the
              last 360 test: the file goes writer by writer, so the test asks for hands never seen
              (logistic regression gets .90 right; where every fifth record tests, .97).
            * ``mnist``, ``fashion-mnist``, ``emnist`` (47 classes, turned upright), ``cifar10``,
              ``cifar100``: torchvision's files in ``data_dir`` and their official test set.
            * ``heart``: four hospitals, in ``heart/processed.<hospital>.data`` or in
              ``<hospital>/data.csv`` with a header line, through the built-in schema.
              Every 5th record of each is for the test.
        data_dir: folder of the data sets; ``digits`` needs none.

    Raises:
        DataError: an unknown name, or its files are missing or damaged.
        ModelError: torchvision is needed and cannot be imported.
    """
    task = task_of(name)
    if name == "digits":
        return _digits(task)
    if not data_dir:
        raise DataError(
            f"'data-dir' is empty; set it to the folder that holds '{name}': {how_to_get(name)}"
        )
    folder = expanded(data_dir)
    if name == "heart":
        return _heart(folder, task)
    train, test = (_images(name, folder, is_train) for is_train in (True, False))
    return Dataset(task, train, test, None)


def _digits(task: Task) -> Dataset:
    """Read the digits from scikit-learn's file without importing its 1,200 modules.

    A simulated site starts a process for each message.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError(
            "'dataset' = 'digits' is a file of scikit-learn; install it with: pip install ."
        )
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        table = np.loadtxt(path, delimiter=",")
    except (OSError, ValueError):
        raise DataError(f"{path} is missing or damaged; install scikit-learn again") from None
    pixels, classes = table[:, :-1], table[:, -1]
    features = (pixels / 16).astype(np.float32).reshape(-1, *task.input_shape)
    records = Records(features, classes.astype(np.int64))
    rows = np.arange(len(records))
    return Dataset(
        task, records.take(rows[:_DIGITS_TRAIN]), records.take(rows[_DIGITS_TRAIN:]), None
    )


def _images(name: str, folder: Path, is_train: bool) -> Records:
    """Return the official training or test set."""
    kind, task = _IMAGES[name], IMAGE_TASKS[name]
    reader = getattr(import_torchvision("datasets"), kind.reader)
    options = {"split": "balanced"} if name == "emnist" else {}
    try:
        source = reader(str(folder), train=is_train, download=False, **options)
        pixels, classes = np.asarray(source.data), np.asarray(source.targets, dtype=np.int64)
        if name == "emnist":
            pixels = pixels.transpose(0, 2, 1)  # its files hold each image transposed
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    except Exception as error:  # each reader reports missing files differently
        raise _unreadable(name, folder, kind.files) from error
    shape = (len(classes), *task.input_shape)
    if not len(classes) or pixels.shape != shape or classes.max() >= task.classes:
        raise _unreadable(name, folder, kind.files)
    # A table of the 256 possible pixels scales a whole set in one pass.
    scaled = ((np.arange(256) / 255 - kind.mean) / kind.std).astype(np.float32)
    return Records(scaled[np.ascontiguousarray(pixels)], classes)


def _heart(folder: Path, task: Task) -> Dataset:
    from hdpfl_flower.data.schema import Schema
    from hdpfl_tools.tables.table_records import read_table

    files = [folder / "heart" / f"processed.{hospital}.data" for hospital in HOSPITALS]
    if not files[0].exists():
        files = [folder / hospital / "data.csv" for hospital in HOSPITALS]
    if not all(file.exists() for file in files):
        hospitals = ",".join(HOSPITALS)
        raise _unreadable(
            "heart", folder, f"heart/processed.{{{hospitals}}}.data (or {{{hospitals}}}/data.csv)"
        )
    schema = Schema.load("heart")
    try:
        return dataset_of_owners(task, [read_table(file, "csv", schema).records for file in files])
    except DataError as error:
        raise DataError(f"data set 'heart' in {folder}: {error}") from None


def dataset_of_owners(task: Task, records: Sequence[Records]) -> Dataset:
    """Return all owners' records, every 5th of each for testing."""
    position = np.concatenate([np.arange(len(owned)) for owned in records])
    owners = np.repeat(np.arange(len(records)), [len(owned) for owned in records])
    missing = [owned.missing for owned in records if owned.missing is not None]
    together = Records(
        np.concatenate([owned.features for owned in records]),
        np.concatenate([owned.targets for owned in records]),
        np.concatenate(missing) if len(missing) == len(records) else None,
    )
    is_test = position % 5 == 4
    return Dataset(
        task,
        train=together.take(np.flatnonzero(~is_test)),
        test=together.take(np.flatnonzero(is_test)),
        owners=owners[~is_test],
        test_owners=owners[is_test],
    )


def _unreadable(name: str, folder: Path, files: str) -> DataError:
    return DataError(
        f"data set '{name}' cannot be read in 'data-dir' {folder.absolute()}; it must hold {files}"
    )
