"""The wheel, installed into an environment of its own, is the whole product."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app", "hdpfl_tools")
SOURCE = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES, "studies")

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path, home: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"HDPFL_HOME": str(home), "COLUMNS": "100"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of a copy of the tree, with the setuptools that is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder, source, cwd=folder, home=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of an environment with the wheel; other packages are those of this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
              cwd=folder, home=folder)  # fmt: skip
    # A path in a .pth file: the .pth files in that folder, the tree's own among them, do not count.
    (Path(own.strip()) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder, home=folder)
    return folder / "bin"


def test_the_wheel_holds_the_packages_and_their_data_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
    modules = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for pattern in ("*.py", "*.toml", "py.typed", "*.j2", "template/*.md", "template/*.txt")
        for path in (ROOT / package).rglob(pattern)
    }
    assert names == modules


def test_what_runs_is_the_installed_package(installed: Path, tmp_path: Path) -> None:
    code = "import hdpfl_tools.coordinator.commands as m; print(m.__file__)"
    where = run(installed / "python", "-c", code, cwd=tmp_path, home=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)


def test_the_demo_runs_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "hdpfl", "demo", cwd=tmp_path, home=tmp_path)
    words = said.replace(",", "").replace("MMSE averaging ", "MMSE ").split()
    fedavg, mmse, oracle = (
        float(words[words.index(name) + 1]) for name in ("FedAvg", "MMSE", "noise)")
    )
    assert mmse > fedavg + 0.2, "what joining is worth"
    assert mmse > oracle - 0.02
    assert list(tmp_path.glob("runs/demo-*/demo.png"))
    assert list(tmp_path.glob("runs/demo-*/comparison.json"))
