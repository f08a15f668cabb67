"""The rooms of the house: who may import whom, no circle of files, no assert in a package."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app", "studies")
EVERYWHERE = {"hdpfl_flower.errors", "hdpfl_flower.formats"}

MAY_IMPORT: dict[str, set[str]] = {
    "hdpfl_flower": set(),
    "hdpfl_flower.errors": set(),
    "hdpfl_flower.formats": set(),
    "hdpfl_flower.versions": set(),
    "hdpfl_flower.linalg": set(),
    "hdpfl_flower.system": set(),
    "hdpfl_flower.config": set(),
    "hdpfl_flower.measures.concordance": set(),
    "hdpfl_flower.models": {"hdpfl_flower.measures.concordance", "hdpfl_flower.system"},
    "hdpfl_flower.monitoring": {"hdpfl_flower.system"},
    "hdpfl_flower.measures": {"hdpfl_flower.models", "hdpfl_flower.measures.concordance"},
    "hdpfl_flower.data": {"hdpfl_flower.config", "hdpfl_flower.models", "hdpfl_flower.system"},
    "hdpfl_flower.simulation": {
        "hdpfl_flower.data",
        "hdpfl_flower.linalg",
        "hdpfl_flower.models",
        "hdpfl_flower.system",
    },
    "hdpfl_flower.estimators": {"hdpfl_flower.linalg", "hdpfl_flower.models"},
    "hdpfl_flower.clustering": {"hdpfl_flower.linalg", "hdpfl_flower.estimators"},
    "hdpfl_flower.updates": {"hdpfl_flower.estimators"},
    "hdpfl_flower.rounding": {"hdpfl_flower.config"},
    "hdpfl_flower.wire": {"hdpfl_flower.config", "hdpfl_flower.models", "hdpfl_flower.rounding"},
    "hdpfl_flower.privacy": {
        "hdpfl_flower.config",
        "hdpfl_flower.data",
        "hdpfl_flower.linalg",
        "hdpfl_flower.models",
        "hdpfl_flower.system",
    },
    "hdpfl_flower.ledger": {"hdpfl_flower.privacy", "hdpfl_flower.system"},
    "strategies": {"hdpfl_flower", "strategies"},
    "strategies.guards": {"hdpfl_flower"},
    "strategies.core": {
        "hdpfl_flower",
        "strategies.guards",
        "strategies.server_step",
        "strategies.noise_aware.local_steps",
    },
    "strategies.noise_aware.local_steps": {"hdpfl_flower"},
    "strategies.server_step": {"hdpfl_flower"},
    "strategies.averaging": {"hdpfl_flower", "strategies.core"},
    "strategies.noise_aware": {
        "hdpfl_flower",
        "strategies.core",
        "strategies.noise_aware.local_steps",
    },
    "strategies.fedhdp": {"hdpfl_flower", "strategies.core"},
    "strategies.projection": {"hdpfl_flower", "strategies.core", "strategies.averaging"},
    "strategies.personal": {"hdpfl_flower", "strategies.core", "strategies.averaging"},
    "strategies.splitting": {
        "hdpfl_flower",
        "strategies.core",
        "strategies.averaging",
        "strategies.noise_aware",
        "strategies.server_step",
    },
    "strategies.multi_model": {
        "hdpfl_flower",
        "strategies.core",
        "strategies.averaging",
        "strategies.personal",
    },
    "client_app.fast_torch_import": set(),
    "client_app.site": {"hdpfl_flower"},
    "client_app.training": {"hdpfl_flower", "client_app.site"},
    "client_app.personal": {"hdpfl_flower", "client_app.site", "client_app.training"},
    "client_app.worth": {
        "hdpfl_flower",
        "client_app.site",
        "client_app.training",
        "client_app.personal",
    },
    "client_app.approval": set(),
    "client_app.approval.importer": set(),
    "client_app.approval.launcher": set(),
    "client_app.reports": {"hdpfl_flower"},
    "client_app": {
        "hdpfl_flower",
        "client_app.approval.importer",
        "client_app.fast_torch_import",
        "client_app.site",
        "client_app.training",
        "client_app.personal",
    },
    "client_app.audit_rounding": {
        "hdpfl_flower",
        "client_app.audit",
        "client_app.training",
    },
    "client_app.audit_personal": {
        "hdpfl_flower",
        "client_app.audit",
        "client_app.personal",
        "client_app.site",
        "client_app.training",
    },
    "client_app.audit_neighbours": {
        "hdpfl_flower",
        "client_app.audit",
        "client_app.audit_personal",
        "client_app.personal",
    },
    "client_app.commands": {
        "hdpfl_flower",
        "client_app.site",
        "client_app.training",
        "client_app.personal",
        "client_app.worth",
        "client_app.approval",
        "client_app.reports",
        "client_app.audit",
        "client_app.audit_rounding",
        "client_app.audit_personal",
        "client_app.audit_neighbours",
    },
    "server_app": {"hdpfl_flower"},
    "server_app.run": {"hdpfl_flower", "strategies"},
    "server_app.monitoring": {"hdpfl_flower", "strategies.core"},
    "server_app.reports": {"hdpfl_flower", "server_app.run", "server_app.plots"},
    "server_app.reports.comparison_tables": {
        "hdpfl_flower",
        "server_app.run",
        "server_app.simulation",
        "server_app.reports",
    },
    "server_app.simulation": {"hdpfl_flower", "server_app.run", "client_app"},
    "server_app.app": {"hdpfl_flower", "server_app.run", "server_app.plots"},
    "server_app.project": {"hdpfl_flower", "strategies", "server_app.app"},
    "server_app.template": {"hdpfl_flower", "strategies.core"},
    "server_app.commands": {"hdpfl_flower", "strategies", "server_app"},
    "server_app.commands.bench": {"hdpfl_flower", "strategies", "server_app", "studies"},
    "server_app.commands.demo": {"hdpfl_flower", "strategies", "server_app", "client_app.site"},
    "server_app.commands.listing": {"hdpfl_flower", "strategies", "server_app", "studies"},
    "server_app.commands.reproduce": {"hdpfl_flower", "strategies", "server_app", "studies"},
    "studies": {
        "hdpfl_flower",
        "strategies",
        "studies",
        "server_app.run",
        "server_app.simulation",
        "server_app.plots",
        "server_app.progress",
    },
    "studies.framework": {
        "hdpfl_flower",
        "server_app.run",
        "server_app.simulation",
        "server_app.plots",
        "server_app.progress",
    },
}
"""Room → what it may import besides itself and ``EVERYWHERE``. The longest prefix counts."""

FLWR = {"hdpfl_flower.wire"}
"""The only module of ``hdpfl_flower`` that imports Flower."""
FLOWER_INSIDE = {"server_app.simulation.grid"}
"""The only module that imports the inside of Flower's engines."""


def under(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def room_of(module: str) -> str:
    """Return the longest key of the table that ``module`` lies under."""
    return max((room for room in MAY_IMPORT if under(module, room)), key=len)


@cache
def sources() -> Mapping[str, Path]:
    """Return every module of the packages, by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imported(source: str, modules: frozenset[str]) -> Iterator[str]:
    """Yield what ``source`` imports, in functions too, but not where only types are checked."""

    def walk(node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.If)
                and isinstance(child.test, ast.Name)
                and child.test.id == "TYPE_CHECKING"
            ):
                continue
            yield child
            yield from walk(child)

    for node in walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules else node.module


def forbidden(module: str, source: str) -> list[str]:
    """Return the imports of ``module`` that the table does not allow."""
    own = room_of(module)
    allowed = MAY_IMPORT[own] | EVERYWHERE
    wrong = []
    for name in imported(source, frozenset(sources())):
        ours = name.split(".")[0] in PACKAGES
        # Importing a room's package runs its `__init__`, which holds a docstring alone.
        outside = ours and name not in PACKAGES and room_of(name) != own
        if outside and not any(under(name, room) for room in allowed):
            wrong.append(name)
        inside = name.startswith(("flwr.supercore", "flwr.proto", "flwr.server."))
        if inside and module not in FLOWER_INSIDE:
            wrong.append(name)
        if name.split(".")[0] == "flwr" and under(module, "hdpfl_flower") and module not in FLWR:
            wrong.append(name)
    return wrong


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one circle of imports; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("module", sources())
def test_a_module_imports_what_its_room_may(module: str) -> None:
    assert forbidden(module, sources()[module].read_text()) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("strategies.averaging.x", "from client_app.app import app"),
        ("strategies.averaging.x", "from strategies.projection.pfa import PFA"),
        ("strategies.core.x", "from strategies.averaging.fedavg import FedAvg"),
        ("client_app.site.x", "import strategies.core.base"),
        ("client_app.site.x", "from client_app.training.trainer import Trainer"),
        ("client_app.app", "from client_app.commands import plan"),
        ("client_app.approval.launcher", "from hdpfl_flower.config import terms"),
        ("client_app.approval.importer", "from client_app.app import app"),
        ("client_app.app", "from client_app.approval.fab import read_bundle"),
        ("hdpfl_flower.wire", "def f():\n    from server_app.run import rounds"),
        ("hdpfl_flower.linalg.x", "from hdpfl_flower.models import task"),
        ("hdpfl_flower.privacy.x", "from hdpfl_flower.simulation import budgets"),
        ("hdpfl_flower.config.x", "from flwr.app import Message"),
        ("server_app.run.rounds", "from client_app.site.site import Site"),
        ("server_app.run.rounds", "from studies.framework import study"),
        ("server_app.run.rounds", "from flwr.supercore.run import Run"),
    ],
)
def test_an_import_against_the_table_is_found(module: str, line: str) -> None:
    assert forbidden(module, line)


def test_every_room_of_the_table_exists() -> None:
    gone = [room for room in MAY_IMPORT if not any(under(name, room) for name in sources())]
    assert gone == []


def test_no_circle_of_modules_in_functions_neither() -> None:
    known = frozenset(sources())
    graph = {
        name: {m for m in imported(path.read_text(), known) if m in known and m != name}
        for name, path in sources().items()
    }
    assert circle(graph) == []


def test_a_circle_of_modules_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})


@pytest.mark.parametrize("module", sources())
def test_packages_raise_and_do_not_assert(module: str) -> None:
    """``python -O`` removes asserts."""
    tree = ast.parse(sources()[module].read_text())
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("module", sources())
def test_a_file_has_at_most_500_lines(module: str) -> None:
    assert len(sources()[module].read_text().splitlines()) <= 500


def test_a_room_has_at_most_15_modules() -> None:
    folders: dict[Path, int] = {}
    for path in sources().values():
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
    assert {str(f.relative_to(ROOT)): n for f, n in folders.items() if n > 15} == {}


def test_every_public_name_is_documented() -> None:
    """Ruff's pydocstyle rules are on for the packages, and nothing there switches them off."""
    import tomllib

    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "D" in lint["select"]
    ignored = lint["per-file-ignores"]
    assert not any("D" in ignored.get(f"{package}/**", []) for package in PACKAGES)
