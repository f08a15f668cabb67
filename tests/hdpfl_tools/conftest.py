"""A hospital's invitation, for tests of the file and of the site that joins by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hdpfl_tools.invited import invitation


@pytest.fixture
def invited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return invitation(tmp_path, monkeypatch)
