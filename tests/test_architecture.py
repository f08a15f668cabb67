"""The house: arrows point one way, packages hold no assert, Flower stays in its rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app")
MAY_IMPORT = {
    "hdpfl_flower": set(),
    "strategies": {"hdpfl_flower"},
    "client_app": {"hdpfl_flower"},
    "server_app": {"hdpfl_flower", "strategies"},
}
CLIENT_AND_SERVER = {"server_app/simulation/local.py", "server_app/commands/demo.py"}
"""local.py is where they meet; the demo shows what a simulated site has."""
WIRE = {"hdpfl_flower/wire.py", "hdpfl_flower/wire_arrays.py"}


def files() -> list[str]:
    return sorted(
        str(p.relative_to(ROOT)) for package in PACKAGES for p in (ROOT / package).rglob("*.py")
    )


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def backward(name: str, source: str) -> list[str]:
    """Return the imports of file ``name`` that point the wrong way."""
    package = name.split("/", maxsplit=1)[0]
    allowed = MAY_IMPORT[package] | {package}
    if name in CLIENT_AND_SERVER:
        allowed = allowed | {"client_app"}
    wrong = [m for m in imported(source) if m.split(".")[0] in set(PACKAGES) - allowed]
    if package == "hdpfl_flower" and name not in WIRE:
        wrong += [m for m in imported(source) if m.split(".")[0] == "flwr"]
    if name != "server_app/simulation/local.py":
        wrong += [
            m
            for m in imported(source)
            if m.startswith(("flwr.supercore", "flwr.proto", "flwr.server."))
        ]
    return wrong


@pytest.mark.parametrize("name", files())
def test_no_arrow_points_back(name: str) -> None:
    assert backward(name, (ROOT / name).read_text()) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("strategies/x.py", "from client_app.app import app"),
        ("client_app/x.py", "import strategies"),
        ("hdpfl_flower/x.py", "def f():\n    from server_app import rounds"),
        ("hdpfl_flower/x.py", "from flwr.app import Message"),
        ("server_app/run/rounds.py", "from client_app.site.site import Site"),
        ("server_app/run/rounds.py", "from flwr.supercore.run import Run"),
    ],
)
def test_an_arrow_that_points_back_is_found(name: str, line: str) -> None:
    assert backward(name, line)


@pytest.mark.parametrize("name", files())
def test_packages_raise_and_do_not_assert(name: str) -> None:
    """``python -O`` removes asserts."""
    tree = ast.parse((ROOT / name).read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("name", files())
def test_a_file_is_one_subject(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= 500


def test_every_public_name_is_documented() -> None:
    """Ruff's pydocstyle rules are on for the packages, and nothing there switches them off."""
    import tomllib

    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "D" in lint["select"]
    ignored = lint["per-file-ignores"]
    assert not any("D" in ignored.get(f"{package}/**", []) for package in PACKAGES)
