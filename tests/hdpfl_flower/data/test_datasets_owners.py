"""Named data sets of natural owners: the hospitals of Heart, the schools of School."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.data.datasets import HOSPITALS, Dataset, load_dataset, task_of
from hdpfl_flower.errors import DataError
from hdpfl_flower.models.task import Records

REAL = os.environ.get("HDPFL_TEST_DATA", "")
HEADER = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target\n"
COUNTS = (12, 10, 9, 5)
"""Records of the four hospitals that the tests write."""


@pytest.fixture(autouse=True)
def _forget_what_was_loaded() -> None:
    load_dataset.cache_clear()


def real_folder(name: str) -> str:
    """Return the folder of the real data sets, or skip the test."""
    if not REAL or not (Path(REAL) / name).is_dir():
        pytest.skip(f"set HDPFL_TEST_DATA to a folder that holds {name}/ to check the real set")
    return REAL


def check(dataset: Dataset, name: str) -> Records:
    """Check the types and shapes that the task promises; return the test records."""
    assert dataset.task == task_of(name)
    assert dataset.test is not None
    assert dataset.owners is not None
    assert dataset.owners.dtype == np.int64
    assert dataset.owners.shape == (len(dataset.train),)
    for records in (dataset.train, dataset.test):
        assert records.features.dtype == np.float32
        assert records.features.shape == (len(records), *dataset.task.input_shape)
        assert records.targets.shape == (len(records),)
        assert records.targets.dtype == (np.int64 if dataset.task.classes else np.float32)
    return dataset.test


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
    test = check(dataset, "heart")
    assert dataset.owners is not None
    np.testing.assert_array_equal(np.bincount(dataset.owners), [10, 8, 8, 4])
    np.testing.assert_array_equal(dataset.train.targets, dataset.owners % 2)
    # Age is the first feature, [20, 90] scaled to [-1, 1].
    place = np.rint((dataset.train.features[:, 0] + 1) * 35).astype(int)
    np.testing.assert_array_equal(place[dataset.owners == 2], [0, 1, 2, 3, 5, 6, 7, 8])
    np.testing.assert_array_equal(np.rint((test.features[:, 0] + 1) * 35), [4, 9, 4, 9, 4, 4])


def test_school_scales_by_public_constants(tmp_path: Path) -> None:
    from scipy.io import savemat

    generator = np.random.default_rng(3)
    pupils, marks = np.empty((1, 3), dtype=object), np.empty((1, 3), dtype=object)
    for school, count in enumerate((11, 5, 3)):
        features = generator.integers(0, 2, (count, 28), dtype=np.uint8)
        features[:, 3:5] = generator.integers(0, 101, (count, 2))
        pupils[0, school], marks[0, school] = features, np.arange(count, dtype=np.uint8)[:, None]
    (tmp_path / "school").mkdir()
    savemat(tmp_path / "school" / "school.mat", {"X": pupils, "Y": marks})
    dataset = load_dataset("school", str(tmp_path))
    test = check(dataset, "school")
    np.testing.assert_array_equal(dataset.owners, [0] * 9 + [1] * 4 + [2] * 3)
    np.testing.assert_allclose(test.targets * 70, [4, 9, 4], atol=1e-5)
    np.testing.assert_allclose(
        dataset.train.targets[:9] * 70, [0, 1, 2, 3, 5, 6, 7, 8, 10], atol=1e-5
    )
    expected = np.delete(pupils[0, 0], [4, 9], axis=0).astype(float)
    expected[:, 3:5] = expected[:, 3:5] / 50 - 1
    np.testing.assert_allclose(dataset.train.features[:9], expected, atol=1e-6)
    (tmp_path / "school" / "school.mat").write_bytes(b"not a matrix")
    load_dataset.cache_clear()
    with pytest.raises(DataError, match=r"school/school\.mat"):
        load_dataset("school", str(tmp_path))


def test_real_heart_has_the_documented_hospitals() -> None:
    dataset = load_dataset("heart", real_folder("heart"))
    assert len(dataset.train) + len(check(dataset, "heart")) == 303 + 294 + 123 + 200
    assert dataset.owners is not None
    np.testing.assert_array_equal(np.bincount(dataset.owners), [243, 236, 99, 160])
    assert 0.5 < dataset.train.targets.mean() < 0.6


def test_real_school_has_139_schools_within_the_constants() -> None:
    dataset = load_dataset("school", real_folder("school"))
    test = check(dataset, "school")
    assert dataset.owners is not None
    assert len(np.unique(dataset.owners)) == 139
    assert len(dataset.train) + len(test) == 15_362
    for records in (dataset.train, test):
        assert np.abs(records.features).max() <= 1
        assert records.targets.min() >= 0
        assert records.targets.max() <= 1
