"""Where the updates lie: one matrix, in memory or in a file, the same to all who read it."""

from __future__ import annotations

import math
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.linalg.sums import square_sum, weighted_sum
from hdpfl_flower.linalg.update_matrix import update_matrix


def lies_in_a_file(rows: np.ndarray) -> bool:
    return isinstance(rows.base, np.memmap)


@pytest.mark.parametrize(("limit", "file"), [(400, False), (399, True)])
def test_beyond_the_limit_its_file_is_unnamed(limit: int, file: bool, tmp_path: Path) -> None:
    rows = update_matrix(4, 25, tmp_path, limit)
    assert lies_in_a_file(rows) is file
    assert type(rows) is np.ndarray
    assert (rows.shape, rows.dtype) == ((4, 25), np.float32)
    rows[:] = np.arange(100).reshape(4, 25)
    assert rows[1:].sum() == sum(range(25, 100))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        update_matrix(2, 10, tmp_path, 0)


# --- sums over updates: block by block, and bit for bit what they are in one piece


GENERATOR = np.random.default_rng(1)
ROWS = GENERATOR.standard_normal((5, 150_001)).astype(np.float32)
WEIGHTS = GENERATOR.dirichlet(np.ones(5))


def test_blocks_change_no_bit() -> None:
    total = np.zeros(ROWS.shape[1])
    for weight, row in zip(WEIGHTS, ROWS, strict=True):
        total += weight * row.astype(np.float64)
    np.testing.assert_array_equal(weighted_sum(WEIGHTS, ROWS), total.astype(np.float32))
    assert not np.array_equal(WEIGHTS.astype(np.float32) @ ROWS, total.astype(np.float32))


def test_a_weighted_sum_takes_no_more_than_its_result_and_some_blocks() -> None:
    rows = np.ones((2, 2_000_000), np.float32)
    tracemalloc.start()
    weighted_sum(np.array([0.5, 0.5]), rows)
    square_sum(rows[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.3 * rows[0].nbytes


def test_squares_are_summed_in_float64() -> None:
    row = ROWS[0] * np.float32(1e18)
    exact = math.fsum(float(x) ** 2 for x in row)
    np.testing.assert_allclose(square_sum(row), exact, rtol=1e-12)
