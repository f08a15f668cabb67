"""Every test works in folders of its own and leaves the user's alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores; torch reads it at import
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("house", derandomize=True, deadline=None)
settings.load_profile("house")


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One HDPFL_HOME for the session: noise multipliers are calibrated once."""
    return tmp_path_factory.mktemp("hdpfl-home")


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, shared_home: Path) -> None:
    monkeypatch.setenv("HDPFL_HOME", str(shared_home))
    monkeypatch.delenv("HDPFL_PROFILE", raising=False)
