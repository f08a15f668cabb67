"""The public package: few names, imported late; a user's file that hides a package of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hdpfl_flower


def test_every_public_name_can_be_imported_and_is_documented() -> None:
    assert len(hdpfl_flower.__all__) <= 25
    for name in hdpfl_flower.__all__:
        value = getattr(hdpfl_flower, name)
        assert value.__doc__, name
    assert set(hdpfl_flower.__all__) <= set(dir(hdpfl_flower))
    with pytest.raises(AttributeError, match="no public name 'nothing'"):
        _ = hdpfl_flower.nothing


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", code]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_importing_the_package_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, hdpfl_flower; hdpfl_flower.__version__; "
        "print({'torch', 'flwr', 'numpy', 'pydantic', 'dp_accounting'} & set(sys.modules))"
    )
    assert run(code, tmp_path).stdout == "set()\n"


HIDING = ("strategies.py", "client_app.py", "server_app.py")


def test_every_public_name_works_beside_a_users_own_files(tmp_path: Path) -> None:
    for name in HIDING:
        (tmp_path / name).write_text("raise SystemExit('a user file was imported')\n")
    done = run(
        "import hdpfl_flower as h; print([getattr(h, n) and n for n in h.__all__])", tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{hdpfl_flower.__all__}\n"


@pytest.mark.parametrize("name", HIDING)
def test_a_users_file_that_hides_a_package_of_the_app_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("")
    done = run("from hdpfl_tools import run", tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / name} hides the package '{name[:-3]}'")
    assert "rename it" in last
