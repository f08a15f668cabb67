"""The ServerApp reads the file that ``schema`` names; what it sends holds the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from server_app import app
from tests.hdpfl_flower.data.schema_text import TEXT


def test_the_serverapp_sends_schema_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunConfig] = []
    given: dict[str, Any] = {"schema": "small.toml", "dataset": "site"}
    monkeypatch.setattr(app, "run", lambda _, config, *args, **kwargs: seen.append(config))
    monkeypatch.setattr(app, "engine_of", lambda _: "deployment")
    monkeypatch.chdir(tmp_path)
    grid: Any = None
    with pytest.raises(TermsError, match=r"small\.toml is not there"):
        app.run_or_resume(grid, given)
    (tmp_path / "small.toml").write_text(TEXT)
    app.run_or_resume(grid, given)
    assert [config.terms.schema_text for config in seen] == [TEXT]
