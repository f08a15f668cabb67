"""Paths with ``~``: of this user, and of a user that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import HDPFLError
from hdpfl_flower.system.paths import expanded


def test_an_unknown_users_home_is_a_path_that_is_not_there(tmp_path: Path) -> None:
    assert expanded("~/x") == Path.home() / "x" and expanded("a/b") == Path("a/b")
    assert expanded("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")
    (tmp_path / "run.toml").write_text('dataset = "site"\nschema = "~nobody-of-this-name/x"\n')
    with pytest.raises(HDPFLError, match="schema"):
        task_for(RunConfig.load(tmp_path / "run.toml").terms)
