"""Small data sets of the cases: pooled MNIST, ten authorities of chem97, drawn classes."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import numpy.typing as npt

from hdpfl_flower.data.datasets import Dataset, dataset_of_owners, load_dataset
from hdpfl_flower.models.task import Records, Task
from studies.natural.federations.read import read_federation, schema_of

DATA_DIR = "HDPFL_ADVISE_DATA"
"""Environment variable that names the folder with MNIST: a function of records has no argument."""
TRAIN, TEST = 12_000, 2_000
AUTHORITIES, PUPILS = 10, 375


@cache
def pooled_mnist() -> Dataset:
    """Return MNIST's first 12,000 and 2,000 records, 2 × 2 pixels averaged."""
    whole = load_dataset("mnist", os.environ[DATA_DIR])
    task = Task.classification((196,), whole.task.outputs)
    test = None if whole.test is None else _pooled(whole.test, TEST)
    return Dataset(task, _pooled(whole.train, TRAIN), test, None)


def _pooled(records: Records, most: int) -> Records:
    images = records.features[:most].reshape(-1, 14, 2, 14, 2)
    return Records(images.mean((2, 4)).reshape(len(images), -1), records.targets[:most])


@cache
def chem97() -> Dataset:
    """Return 375 records of each of chem97's ten largest authorities; every fifth tests."""
    found = sorted(read_federation("chem97").records, key=len, reverse=True)[:AUTHORITIES]
    parts = [records.take(np.arange(PUPILS)) for records in found]
    return dataset_of_owners(schema_of("chem97").task, parts)


@cache
def planes() -> Dataset:
    """Return three classes of 20 normal features, which planes part with an error of a tenth."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(8_000, 20))
    scores = x @ generator.normal(size=(20, 3)) + generator.normal(size=(8_000, 3))
    return _split(x, scores.argmax(1), 3)


@cache
def corners() -> Dataset:
    """Return two classes by the sign of a product of two features, which no plane parts."""
    x = np.random.default_rng(8).normal(size=(10_000, 6))
    return _split(x, (x[:, 0] * x[:, 1] > 0).astype(np.int64), 2)


def _split(x: npt.NDArray[np.float64], y: npt.NDArray[np.int64], classes: int) -> Dataset:
    records = Records(x.astype(np.float32), y)
    task = Task.classification(x.shape[1:], classes)
    rows = np.arange(len(y))
    return Dataset(task, records.take(rows[TEST:]), records.take(rows[:TEST]), None)
