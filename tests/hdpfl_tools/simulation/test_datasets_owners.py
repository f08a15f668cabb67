"""Named data set of natural owners: the hospitals of Heart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.data.run_task import task_of
from hdpfl_tools.simulation.datasets import HOSPITALS, load_dataset

HEADER = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target\n"
COUNTS = (12, 10, 9, 5)
"""Records of the four hospitals that the tests write."""


@pytest.fixture(autouse=True)
def _forget_what_was_loaded() -> None:
    load_dataset.cache_clear()


def write_heart(paths: list[Path]) -> None:
    """Write four hospitals; a record's age is 20 + its place, its label the hospital's parity."""
    for hospital, (path, count) in enumerate(zip(paths, COUNTS, strict=True)):
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{20 + i},1,4,120,?,0,0,150,0,1,2,0,3,{hospital % 2 * 3}\n" for i in range(count)]
        path.write_text(HEADER + "".join(rows), encoding="utf-8")


@pytest.mark.parametrize("layout", ["heart/processed.{}.data", "{}/data.csv"])
def test_heart_has_four_natural_owners_and_tests_every_fifth(tmp_path: Path, layout: str) -> None:
    write_heart([tmp_path / layout.format(hospital) for hospital in HOSPITALS])
    dataset = load_dataset("heart", str(tmp_path))
    test = dataset.test
    assert dataset.task == task_of("heart") and dataset.owners.dtype == np.int64
    for records in (dataset.train, test):
        assert records.features.shape == (len(records), *dataset.task.input_shape)
        assert (records.features.dtype, records.targets.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(np.bincount(dataset.owners), [10, 8, 8, 4])
    np.testing.assert_array_equal(dataset.train.targets, dataset.owners % 2)
    # Age is the first feature, [20, 90] scaled to [-1, 1].
    place = np.rint((dataset.train.features[:, 0] + 1) * 35).astype(int)
    np.testing.assert_array_equal(place[dataset.owners == 2], [0, 1, 2, 3, 5, 6, 7, 8])
    np.testing.assert_array_equal(np.rint((test.features[:, 0] + 1) * 35), [4, 9, 4, 9, 4, 4])
