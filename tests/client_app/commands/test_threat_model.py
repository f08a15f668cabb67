"""``docs/threat-model.md``: the launcher in it does what it says, and the danger is what it says.

The two tests of Flower hold for the version that is pinned: when one fails after an update, the
document has to be read again.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_app.commands.report_facts import ADVERSARY
from hdpfl_flower import wire

TEXT = (Path(__file__).parents[3] / "docs" / "threat-model.md").read_text()
MODULES = ("sent_app", "own_app")
CODE = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"


def pyproject(module: str, version: str) -> str:
    return f"""
[project]
name = "hdpfl-flower"
version = "{version}"
[tool.flwr.app]
publisher = "hdpfl"
[tool.flwr.app.components]
serverapp = "{module}:app"
clientapp = "{module}:app"
"""


def bundle(module: str, version: str) -> bytes:
    """Return an app as Flower ships it."""
    files = {"pyproject.toml": pyproject(module, version).encode(), f"{module}.py": CODE.encode()}
    listed = [f"{name},{hashlib.sha256(data).hexdigest()},8" for name, data in files.items()]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(".info/CONTENT", "\n".join(listed))
    return stream.getvalue()


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


def run_what_is_sent(runtime, fab: bytes, version: str) -> str:
    """Install and load an app as a SuperNode does; returns the file of the code that was run."""
    name = "hdpfl/hdpfl-flower"
    runtime.install_from_fab(fab, skip_prompt=True)
    load = runtime.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    load(name, version, hashlib.sha256(fab).hexdigest())
    (module,) = (sys.modules[module] for module in MODULES if module in sys.modules)
    return str(module.__file__)


def supernode_runtime():
    return importlib.import_module("flwr.supernode.runtime.run_clientapp")


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


def test_the_launcher_runs_the_sites_own_copy(flwr_home: Path, tmp_path: Path, monkeypatch) -> None:
    import flwr.supernode.cli

    own = tmp_path / "app"
    own.mkdir()
    (own / "pyproject.toml").write_text(pyproject("own_app", "0.1.0"))
    (own / "own_app.py").write_text(CODE)
    (launcher,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    launcher = re.sub(r"^   ", "", launcher, flags=re.MULTILINE)
    assert launcher.count('"/srv/hdpfl/app"') == 1
    runtime = supernode_runtime()
    for name in ("install_from_fab", "get_load_client_app_fn"):  # undone after the test
        monkeypatch.setattr(runtime, name, getattr(runtime, name))
    found = []
    fab = bundle("sent_app", "0.1.0")
    start = lambda: found.append(run_what_is_sent(runtime, fab, "0.1.0"))  # noqa: E731
    monkeypatch.setattr(flwr.supernode.cli, "flwr_clientapp", start)
    with pytest.raises(SystemExit):
        exec(launcher.replace("/srv/hdpfl/app", str(own)), {})
    assert found == [str(own / "own_app.py")]
    assert len(list((flwr_home / "apps").iterdir())) == 1, "what was sent is not even unpacked"
    with pytest.raises(Exception, match="mismatch"):
        run_what_is_sent(runtime, bundle("sent_app", "0.2.0"), "0.2.0")


def test_a_supernode_finds_its_programs_by_name() -> None:
    """So that a PATH with the launcher alone leaves a server nothing else to start."""
    from flwr.supercore.superexec.executor import subprocess_executor

    commands = set(subprocess_executor.TASK_TYPE_TO_COMMAND.values())
    assert "flwr-clientapp" in commands
    assert not any("/" in command for command in commands)


def test_what_crosses_the_network_is_listed() -> None:
    row = next(line for line in TEXT.splitlines() if "*join*" in line)
    assert set(re.findall(r"`([a-z-]+)`", row)) == wire.SITE_KEYS - {"partition", "noise-std"}
    row = next(line for line in TEXT.splitlines() if "*evaluate*" in line)
    assert set(re.findall(r"`([a-z-]+)`", row)) - {"metrics"} == wire.METRIC_KEYS
    assert f"({wire.DECLINED})" in TEXT
    assert f"({wire.FAILED})" in TEXT


def test_the_files_that_are_named_are_there() -> None:
    root = Path(__file__).parents[3]
    names = re.findall(r"`((?:hdpfl_flower|client_app|tests)/[a-z_/]+\.py)`", TEXT)
    assert names
    assert all((root / name).is_file() for name in names)
    assert "other sites may help" in ADVERSARY
    assert "other sites may help" in " ".join(TEXT.split())
