"""A deployed site needs no simulation; a simulated one asks for the wheel by name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client_app.site.app_digest import PACKAGES
from tests.client_app.messages import make_site

ROOT = Path(__file__).parents[2]
ROUND = """
import sys
from importlib.util import find_spec
from pathlib import Path
assert find_spec("hdpfl_tools.simulation") is None
from tests.client_app.messages import ask, terms_of
reply = ask(Path(sys.argv[1]), terms_of())
print("answered" if reply.has_content() else reply.error)
assert not [name for name in sys.modules if name.startswith("hdpfl_tools.")]
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the packages without the simulation, first on a process's path."""
    folder = tmp_path_factory.mktemp("copy")
    for package in (*PACKAGES, "hdpfl_tools"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.pyc"))
    shutil.rmtree(folder / "hdpfl_tools" / "simulation")
    # An editable installation would find the folder in the checkout.
    (folder / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'Editable' not in str(f)]\n"
    )
    for file in ("tests/__init__.py", "tests/client_app/messages.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    return folder


def one_round(copy: Path, profile: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", ROUND, str(profile)],
        env={**os.environ, "PYTHONPATH": str(copy)},
        cwd=profile.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_deployed_round_runs_without_the_simulation(copy: Path, tmp_path: Path) -> None:
    """Its records are prepared by the tools that are left."""
    done = one_round(copy, make_site(tmp_path))
    assert done.stdout == "answered\n", done.stderr
    assert done.returncode == 0, done.stderr


def test_a_simulated_profile_declines_there(copy: Path, tmp_path: Path) -> None:
    done = one_round(copy, make_site(tmp_path, more="[simulation]\nseed = 1\n"))
    assert "answered" not in done.stdout
    assert "pip install hdpfl-flower" in done.stderr
