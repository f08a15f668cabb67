"""The ServerApp that ``flwr run`` starts refuses ``stack``: its sites train by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from server_app import app


@pytest.mark.parametrize("engine", ["simulation", "deployment"])
def test_separate_processes_are_not_stacked(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(app, "run", lambda _, config, *args, **kwargs: seen.append(config))
    monkeypatch.setattr(app, "engine_of", lambda _: engine)
    grid: Any = None
    with pytest.raises(TermsError, match="'stack' is for simulations in one process"):
        app.run_or_resume(grid, {"stack": True})
    assert seen == []
    app.run_or_resume(grid, {"stack": False})
    assert len(seen) == 1
