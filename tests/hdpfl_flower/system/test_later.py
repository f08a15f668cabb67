"""Help without the imports of any command, and the same help as with them."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import typer

from client_app.commands import COMMANDS as SITES
from client_app.commands import app as hdpfl_site
from server_app.commands import COMMANDS
from server_app.commands import app as hdpfl

LINES = {"server_app": (hdpfl, COMMANDS), "client_app": (hdpfl_site, SITES)}
HEAVY = (
    "torch", "flwr", "numpy", "pandas", "pyarrow", "sklearn", "scipy", "matplotlib", "pydantic",
    "cryptography", "grpc", "dp_accounting", "jinja2",
)  # fmt: skip


def imported(package: str, words: list[str]) -> set[str]:
    """Return the modules of a process that ran a command line with ``words``."""
    code = (
        f"import sys; sys.argv = ['x', *{words!r}]\n"
        f"from {package}.commands import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('modules', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.rpartition("modules")[2].split())


@pytest.mark.parametrize("package", LINES)
@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_help_and_version_import_nothing_heavy(package: str, words: list[str]) -> None:
    found = imported(package, words)
    assert f"{package}.commands" in found
    assert not found & set(HEAVY)
    assert not [name for name in found if name.startswith(f"{package}.commands.")]


@pytest.mark.parametrize("package", LINES)
def test_the_brief_help_is_the_first_paragraph_of_the_commands_own(package: str) -> None:
    app, table = LINES[package]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert list(commands) == list(table)
    for name, command in commands.items():
        first = inspect.cleandoc(command.help or "").split("\n\n")[0]
        assert " ".join(first.split()) == table[name].brief, name
        assert command.name == name
