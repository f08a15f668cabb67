"""Where the updates lie: one matrix, in memory or in a file, the same to all who read it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hdpfl_flower.linalg import update_matrix as module
from hdpfl_flower.linalg.update_matrix import give_back_freed_memory, memory_limit, update_matrix


def lies_in_a_file(rows: np.ndarray) -> bool:
    return isinstance(rows.base, np.memmap)


@pytest.mark.parametrize(("limit", "file"), [(400, False), (399, True)])
def test_beyond_the_limit_it_lies_in_a_file_without_a_name(
    limit: int, file: bool, tmp_path: Path
) -> None:
    rows = update_matrix(4, 25, tmp_path, limit)
    assert lies_in_a_file(rows) is file
    assert type(rows) is np.ndarray
    assert (rows.shape, rows.dtype) == ((4, 25), np.float32)
    rows[:] = np.arange(100).reshape(4, 25)
    assert rows[1:].sum() == sum(range(25, 100))
    assert not list(tmp_path.iterdir())


def test_without_its_folder_it_lies_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    for folder in (None, tmp_path / "no such run"):
        assert lies_in_a_file(update_matrix(2, 10, folder, 0))


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        update_matrix(2, 10, tmp_path, 0)


def test_the_limit_is_a_quarter_of_the_machine_or_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, limit in (
        ("max\n", machine // 4),
        ("4096\n", 1024),
        (str(2 * machine), machine // 4),
    ):
        (tmp_path / "memory.max").write_text(text)
        monkeypatch.setattr(module, "_CGROUP", tmp_path / "memory.max")
        assert memory_limit() == limit
    monkeypatch.setattr(module, "_CGROUP", tmp_path / "none")
    assert memory_limit() == machine // 4


def test_a_c_library_that_cannot_trim_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back_freed_memory()
    monkeypatch.setattr(module, "_malloc_trim", lambda: None)
    give_back_freed_memory()
