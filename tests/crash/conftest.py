"""Workers for the session of tests, and a folder where waiting for the disk costs nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.harness import Workers

MEMORY = Path("/dev/shm")  # a killed process leaves what it wrote there, as on any file system


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    lean = Workers()
    yield lean
    lean.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as name:
        yield Path(name)
