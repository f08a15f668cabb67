"""The ServerApp reads a user's own data set in simulations; where sites are real it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import TermsError
from server_app import app


@pytest.mark.parametrize("engine", ["simulation", "deployment"])
def test_own_data_simulations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(app, "run", lambda _, config, *args, **kwargs: seen.append(config))
    monkeypatch.setattr(app, "engine_of", lambda _: engine)
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", x=np.zeros((9, 4)), y=np.arange(9) % 3)
    grid: Any = None
    if engine == "deployment":
        with pytest.raises(TermsError, match="set it to site, with 'task'"):
            app.run_or_resume(grid, {"dataset": "file:own.npz"})
        assert seen == []
        return
    app.run_or_resume(grid, {"dataset": "file:own.npz"})
    (config,) = seen
    assert config.terms.dataset == f"file:{tmp_path}/own.npz"
    assert config.terms.as_config()["task"] == "classification shape=4 classes=3"
