"""``pyproject.toml`` says what the code says, and the app bundle holds what a node needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import flatten_dict

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.noise_sources import DEFAULTS
from hdpfl_flower.versions import __version__
from server_app.app import RESUME_FROM
from server_app.run.resume import defaults
from strategies import check_strategy
from strategies.settings import with_own_settings

ROOT = Path(__file__).parents[1]
PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app")


def flower() -> dict[str, Any]:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    section: dict[str, Any] = content["tool"]["flwr"]
    return section


def test_the_run_config_is_every_term_with_its_default() -> None:
    """``flwr run`` lets declared keys alone be overridden."""
    declared = flatten_dict(flower()["app"]["config"])
    assert declared.pop(RESUME_FROM) == ""
    # Those of a source of noise are open, so that another source has its own.
    assert declared == {**defaults(), **dict.fromkeys(DEFAULTS, "auto")}
    assert {k: type(v) for k, v in declared.items()} == {k: type(v) for k, v in defaults().items()}
    for name in ("fedavg", "robust-hdp"):
        config = RunConfig.parse({**declared, "strategy": name})
        assert with_own_settings(config, check_strategy(name)) == with_own_settings(
            RunConfig.parse({"strategy": name}), check_strategy(name)
        )


def test_the_version_is_one() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert content["project"]["version"] == __version__


def test_flower_accepts_the_apps_format_and_target() -> None:
    """Flower Hub takes format 1 alone, which names a licence file and the version tried."""
    from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = normalize_and_validate_fab_format(content)
    assert found.fab_format_version == 1
    assert found.flwr_version_target == version("flwr")


def test_the_components_exist() -> None:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    from client_app.app import app as client_app
    from server_app.app import app as server_app

    components = {"serverapp": "server_app.app:app", "clientapp": "client_app.app:app"}
    assert flower()["app"]["components"] == components
    assert isinstance(server_app, ServerApp)
    assert isinstance(client_app, ClientApp)


def test_the_bundle_is_the_four_packages_and_nothing_else(tmp_path: Path) -> None:
    """A bundle is what a site pins by its hash: no test, no deployment file, no record."""
    app = tmp_path / "hdpfl-flower"
    app.mkdir()
    names = ["pyproject.toml", "README.md", "LICENSE", "studies", "tests", "deploy", "docs"]
    for name in (*names, *PACKAGES):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, app / name)
        elif source.exists():
            shutil.copy(source, app / name)
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(app)]
    built = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    bundles = list(tmp_path.glob("*.fab"))
    assert len(bundles) == 1, built.stdout + built.stderr
    with zipfile.ZipFile(bundles[0]) as bundle:
        shipped = set(bundle.namelist())
    modules = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    schemas = {
        str(p.relative_to(ROOT)) for p in (ROOT / "hdpfl_flower/data/schemas").glob("*.toml")
    }
    others = {"pyproject.toml", "README.md", "LICENSE", ".info/CONTENT"}
    assert schemas
    assert shipped == modules | schemas | others


@pytest.mark.parametrize(
    "file", ["pyproject.toml", "hdpfl_tools/coordinator/template/project.toml"]
)
def test_the_bundle_is_the_four_packages_whole(file: str) -> None:
    app = tomllib.loads((ROOT / file).read_text())["tool"]["flwr"]["app"]
    assert "fab-exclude" not in app
    assert not [pattern for pattern in app["fab-include"] if "hdpfl_tools" in pattern]
