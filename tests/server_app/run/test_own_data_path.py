"""The ServerApp reads a user's own data set in simulations; where sites are real it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from server_app import app
from tests.hdpfl_flower.data.schema_text import TEXT


@pytest.mark.parametrize("engine", ["simulation", "deployment"])
def test_own_data_simulations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(app, "run", lambda _, config, *args, **kwargs: seen.append(config))
    monkeypatch.setattr(app, "engine_of", lambda _: engine)
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    grid: Any = None
    if engine == "deployment":
        with pytest.raises(TermsError, match=r"set it to 'site', with \[task\]"):
            app.run_or_resume(grid, {"dataset": "file:own.npz"})
        assert seen == []
        return
    app.run_or_resume(grid, {"dataset": "file:own.npz"})
    (config,) = seen
    assert config.terms.dataset == f"file:{tmp_path}/own.npz"
    task = {key: value for key, value in config.terms.as_config().items() if "task" in key}
    assert task == {"task.kind": "classification", "task.shape": "4", "task.classes": 3}


# --- the ServerApp reads the file that ``schema`` names; what it sends holds the text


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


# --- the ServerApp that ``flwr run`` starts refuses ``stack``: its sites train by themselves


@pytest.mark.parametrize("engine", ["simulation", "deployment"])
def test_separate_processes_are_not_stacked(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(app, "run", lambda _, config, *args, **kwargs: seen.append(config))
    monkeypatch.setattr(app, "engine_of", lambda _: engine)
    grid: Any = None
    with pytest.raises(TermsError, match="'stack' works only in a simulation in one process"):
        app.run_or_resume(grid, {"stack": True})
    assert seen == []
    app.run_or_resume(grid, {"stack": False})
    assert len(seen) == 1
