"""``docs/concepts/threat-model.md``: the dangers exist, and what crosses the network is listed.

The tests of Flower hold for the version that is pinned: when one fails after an update, the
document has to be read again.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_app.site.inbox import MOST_RUNS
from hdpfl_flower import wire
from hdpfl_flower.config import terms
from hdpfl_flower.config.profile import LifetimeBudget
from hdpfl_flower.config.toml_text import DEEPEST, MOST_PARTS
from hdpfl_tools.site.approval import fab
from hdpfl_tools.site.reports.facts import ADVERSARY
from tests.hdpfl_tools.site.commands.fabs import (
    MODULES,
    bundle,
    run_what_is_sent,
    supernode_runtime,
)

TEXT = (Path(__file__).parents[4] / "docs" / "concepts" / "threat-model.md").read_text()


@pytest.fixture
def flwr_home(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A Flower home with an approved app, as a site has it; what is imported is forgotten again."""
    home = tmp_path / "flwr"
    (home / "apps" / "hdpfl.hdpfl-flower.0.1.0.1a2b3c4d").mkdir(parents=True)
    monkeypatch.setenv("FLWR_HOME", str(home))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield home
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_version_can_lead_out_of_the_apps_folder(flwr_home: Path) -> None:
    """Why a read-only apps folder is not enough."""
    version = "0.1.0.1a2b3c4d/../../elsewhere"
    found = run_what_is_sent(supernode_runtime(), bundle("sent_app", version), version)
    assert Path(found).resolve().parent.parent == flwr_home
    assert not Path(found).resolve().is_relative_to(flwr_home / "apps")


def test_a_folder_that_exists_is_used_as_it_is(flwr_home: Path) -> None:
    fab = bundle("sent_app", "0.1.0")
    digits = hashlib.sha256(fab).hexdigest()[:8]
    folder = flwr_home / "apps" / f"hdpfl.hdpfl-flower.0.1.0.{digits}"
    folder.mkdir()
    assert supernode_runtime().install_from_fab(fab, skip_prompt=True) == folder
    assert not list(folder.iterdir())


def test_a_supernode_finds_its_programs_by_name() -> None:
    """So that a PATH with the launcher alone leaves a server nothing else to start."""
    from flwr.supercore.superexec.executor import subprocess_executor

    commands = set(subprocess_executor.TASK_TYPE_TO_COMMAND.values())
    assert "flwr-clientapp" in commands
    assert not any("/" in command for command in commands)


def test_what_crosses_the_network_is_listed() -> None:
    row = next(line for line in TEXT.splitlines() if "*join*" in line)
    assert set(re.findall(r"`([a-z-]+)`", row)) == wire.SITE_KEYS - {"partition"}
    row = next(line for line in TEXT.splitlines() if "*evaluate*" in line)
    assert (
        set(re.findall(r"`([a-z-]+)`", row)) - {"metrics", "personal-metrics"} == wire.METRIC_KEYS
    )
    assert f"({wire.DECLINED})" in TEXT
    assert f"({wire.FAILED})" in TEXT


def test_the_bounds_that_are_named_are_those_of_the_code() -> None:
    assert f"terms of {terms.MOST_TERMS:,} characters" in TEXT
    assert f"a schema of {terms.MOST_SCHEMA // 1024} KiB" in TEXT
    assert f"keys of {MOST_PARTS} parts, {DEEPEST} brackets" in TEXT
    assert f"a run id of {terms.MOST_RUN_ID} characters" in TEXT
    assert f"other texts of {terms.MOST_CHARACTERS};" in TEXT
    assert f"{MOST_RUNS} runs wait" in TEXT
    assert f"{fab.MAX_BYTES // 10**6} MB unpacked" in TEXT
    assert f"file of {fab._MOST_PROJECT:,} characters, names of {fab._LONGEST_NAME}," in TEXT
    assert LifetimeBudget(epsilon=1, delta=1e-5).exact_answers == 0
    assert "other sites may help" in ADVERSARY
    assert "other sites may help" in " ".join(TEXT.split())
