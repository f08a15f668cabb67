"""Where the updates lie: one matrix, in memory or in a file, the same to all who read it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

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
