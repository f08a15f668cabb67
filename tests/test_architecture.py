"""Rooms of the project: allowed imports, no import circles, no asserts, plain docstrings."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hdpfl_flower", "strategies", "client_app", "server_app", "hdpfl_tools", "studies")
EVERYWHERE = {"hdpfl_flower.errors", "hdpfl_flower.formats", "hdpfl_flower.noise_sources"}

ROOMS_AND_IMPORTS = """
hdpfl_flower:
hdpfl_flower.errors:
hdpfl_flower.formats:
hdpfl_flower.noise_sources:
hdpfl_flower.versions:
hdpfl_flower.linalg:
hdpfl_flower.system:
hdpfl_flower.config: hdpfl_flower.system hdpfl_flower.work hdpfl_flower.shared_noise.keys
hdpfl_flower.config.run_config: hdpfl_flower.config hdpfl_flower.releases hdpfl_flower.system
hdpfl_flower.config.named_files: hdpfl_flower.config hdpfl_flower.system
hdpfl_flower.config.tables: hdpfl_flower.config hdpfl_flower.releases hdpfl_flower.work
hdpfl_flower.releases: hdpfl_flower.config hdpfl_flower.data hdpfl_flower.measures
    hdpfl_flower.models hdpfl_flower.privacy.accounting hdpfl_flower.privacy.noisy_max
    hdpfl_flower.work
hdpfl_flower.work: hdpfl_flower.config hdpfl_flower.models.task hdpfl_flower.system
hdpfl_flower.measures.concordance:
hdpfl_flower.models: hdpfl_flower.measures.concordance hdpfl_flower.system hdpfl_flower.work
hdpfl_flower.monitoring: hdpfl_flower.system
hdpfl_flower.measures: hdpfl_flower.models hdpfl_flower.measures.concordance
hdpfl_flower.data: hdpfl_flower.config hdpfl_flower.models hdpfl_flower.system hdpfl_flower.work
hdpfl_flower.estimators: hdpfl_flower.linalg hdpfl_flower.models
hdpfl_flower.clustering: hdpfl_flower.linalg hdpfl_flower.estimators
hdpfl_flower.updates: hdpfl_flower.estimators
hdpfl_flower.local_steps: hdpfl_flower.config hdpfl_flower.updates
hdpfl_flower.weighting: hdpfl_flower.config hdpfl_flower.estimators hdpfl_flower.linalg
    hdpfl_flower.local_steps hdpfl_flower.updates
hdpfl_flower.wire: hdpfl_flower.config hdpfl_flower.models
hdpfl_flower.server_wire: hdpfl_flower.config hdpfl_flower.models hdpfl_flower.wire
hdpfl_flower.reply_time: hdpfl_flower.config hdpfl_flower.system
hdpfl_flower.privacy.accounting: hdpfl_flower.config
hdpfl_flower.privacy.noisy_max: hdpfl_flower.privacy.accounting
    hdpfl_flower.privacy.exponential_mechanism hdpfl_flower.privacy.noise
hdpfl_flower.privacy: hdpfl_flower.work hdpfl_flower.releases hdpfl_flower.config
    hdpfl_flower.data hdpfl_flower.linalg hdpfl_flower.models hdpfl_flower.system
    hdpfl_flower.privacy.accounting hdpfl_flower.privacy.noisy_max
hdpfl_flower.shared_noise.members: hdpfl_flower.shared_noise.keys
hdpfl_flower.shared_noise.keys: hdpfl_flower.config hdpfl_flower.shared_noise.members
hdpfl_flower.shared_noise.rules: hdpfl_flower.config hdpfl_flower.shared_noise.members
    hdpfl_flower.work
hdpfl_flower.shared_noise: hdpfl_flower.config hdpfl_flower.privacy.noise
    hdpfl_flower.shared_noise.members hdpfl_flower.system
hdpfl_flower.engines: hdpfl_flower.models hdpfl_flower.privacy hdpfl_flower.system
hdpfl_flower.ledger: hdpfl_flower.config hdpfl_flower.privacy hdpfl_flower.system
hdpfl_flower.doors: hdpfl_flower
strategies: hdpfl_flower strategies
strategies.guards: hdpfl_flower
strategies.core: hdpfl_flower strategies.guards strategies.server_step
strategies.server_step: hdpfl_flower
strategies.averaging: hdpfl_flower strategies.core
strategies.noise_aware: hdpfl_flower strategies.core
strategies.fedhdp: hdpfl_flower strategies.core
strategies.projection: hdpfl_flower strategies.core strategies.averaging
strategies.personal: hdpfl_flower strategies.core strategies.averaging
strategies.splitting: hdpfl_flower strategies.core strategies.averaging strategies.noise_aware
    strategies.server_step
strategies.multi_model: hdpfl_flower strategies.core strategies.averaging strategies.personal
client_app.site: hdpfl_flower
client_app.training: hdpfl_flower client_app.site client_app.work
client_app.work: hdpfl_flower client_app.site
client_app.after_run: hdpfl_flower client_app.site client_app.training client_app.work
    client_app.releases.shrink
client_app.releases: hdpfl_flower client_app.site client_app.training client_app.after_run
client_app: hdpfl_flower client_app.site client_app.training client_app.after_run
    client_app.releases
server_app: hdpfl_flower
server_app.releases: hdpfl_flower
server_app.run: hdpfl_flower strategies server_app.releases
server_app.app: hdpfl_flower server_app.run server_app.plots
hdpfl_tools: hdpfl_flower hdpfl_tools.simulation.in_process
hdpfl_tools.shell: hdpfl_flower
hdpfl_tools.measures: hdpfl_flower
hdpfl_tools.tables: hdpfl_flower
hdpfl_tools.tables.public_records: hdpfl_flower strategies.guards hdpfl_tools.tables
    hdpfl_tools.simulation.own_data
hdpfl_tools.contract: hdpfl_flower strategies
hdpfl_tools.simulation: hdpfl_flower client_app server_app.run strategies.core hdpfl_tools.measures
    hdpfl_tools.tables hdpfl_tools.simulation.own_data hdpfl_tools.simulation.scenarios
hdpfl_tools.simulation.scenarios: hdpfl_flower hdpfl_tools.simulation
hdpfl_tools.simulation.own_data: hdpfl_flower hdpfl_tools.simulation hdpfl_tools.tables
hdpfl_tools.simulation.in_process: hdpfl_flower server_app.run client_app strategies
    hdpfl_tools.simulation
hdpfl_tools.site: hdpfl_flower client_app hdpfl_tools.shell hdpfl_tools.tables
hdpfl_tools.site.ledger_checks: hdpfl_flower
hdpfl_tools.site.worth: hdpfl_flower client_app.site client_app.training client_app.after_run
    hdpfl_tools.site hdpfl_tools.measures hdpfl_tools.tables
hdpfl_tools.site.approval: client_app.site.app_digest hdpfl_flower.config.toml_text
    hdpfl_flower.system
hdpfl_tools.site.approval.launcher:
hdpfl_tools.site.approval.preparation: hdpfl_flower client_app.site hdpfl_tools.tables
hdpfl_tools.site.open_requests: hdpfl_flower client_app.site
hdpfl_tools.site.reports: hdpfl_flower client_app.site hdpfl_tools.site.ledger_checks
    hdpfl_tools.site.open_requests hdpfl_tools.measures
hdpfl_tools.site.commands: hdpfl_flower client_app hdpfl_tools.site hdpfl_tools.shell
    hdpfl_tools.measures hdpfl_tools.tables
hdpfl_tools.coordinator: hdpfl_flower hdpfl_tools.shell
hdpfl_tools.coordinator.kinds_of_run: hdpfl_flower client_app.training
hdpfl_tools.coordinator.monitoring: hdpfl_flower strategies.core server_app.run hdpfl_tools.shell
    hdpfl_tools.simulation.scenarios
hdpfl_tools.coordinator.reports: hdpfl_flower server_app hdpfl_tools.measures
    hdpfl_tools.simulation
hdpfl_tools.coordinator.project: hdpfl_flower strategies server_app.app
    hdpfl_tools.coordinator.template hdpfl_tools.coordinator.kinds_of_run
hdpfl_tools.coordinator.template: hdpfl_flower strategies.core
hdpfl_tools.coordinator.commands: hdpfl_flower strategies server_app client_app.site
    hdpfl_tools studies
studies: hdpfl_flower strategies studies server_app.run server_app.plots server_app.releases
    hdpfl_tools
studies.framework: hdpfl_flower server_app.run server_app.plots hdpfl_tools.simulation
    hdpfl_tools.coordinator.progress hdpfl_tools.measures
studies.survival: hdpfl_flower studies server_app.releases
"""
"""Room: what it may import besides itself and ``EVERYWHERE``. The longest prefix counts."""
MAY_IMPORT = {
    room: set(allowed.split())
    for room, allowed in re.findall(r"^(\S+):(.*(?:\n    .*)*)", ROOMS_AND_IMPORTS, re.M)
}

FLWR = {
    "hdpfl_flower.wire",
    "hdpfl_flower.server_wire",
    "hdpfl_flower.system.patient",
    "hdpfl_flower.doors.noise_aware",
    "hdpfl_flower.doors.charged_updates",
    "hdpfl_flower.doors.private_records",
    "hdpfl_flower.doors.private_updates",
}
"""The only modules of ``hdpfl_flower`` that import Flower."""
FLOWER_INSIDE = {"hdpfl_tools.simulation.in_process.grid", "hdpfl_flower.system.patient"}
"""The only modules that import the inside of Flower's engines."""


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


class Facts(NamedTuple):
    """What the tests ask of a module."""

    imports: list[tuple[str, str]]
    """Module and name; the name is empty for ``import module``."""
    for_types: list[tuple[str, str]]
    """Those where types alone are checked."""
    asserts: list[int]
    classes: list[str]
    first_lines: list[str]


@cache
def facts_of(source: str) -> Facts:
    """Return the facts of a text's statements.

    The tree is not kept: so many objects would slow all that the process collects afterwards.
    """
    found = Facts([], [], [], [], [])
    waiting: deque[ast.AST] = deque([ast.parse(source)])
    while waiting:
        node = waiting.popleft()
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                for line in body:
                    if isinstance(line, ast.ImportFrom) and line.module:
                        found.for_types.extend((line.module, alias.name) for alias in line.names)
                continue
            case ast.Import(names=names):
                found.imports.extend((alias.name, "") for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found.imports.extend((module, alias.name) for alias in names)
            case ast.Assert(lineno=line):
                found.asserts.append(line)
            case ast.ClassDef(name=name):
                found.classes.append(name)
            case ast.Expr(value=ast.Constant(value=str(text))):
                found.first_lines.append(text.strip().partition("\n")[0])
        waiting += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.expr)]
    return found


def imported(source: str, modules: frozenset[str], *, types: bool = False) -> list[str]:
    """Return the imports of ``source``, in functions too; with ``types`` those for types, too."""
    facts = facts_of(source)
    return [
        f"{module}.{name}" if f"{module}.{name}" in modules else module
        for module, name in (*facts.imports, *(facts.for_types if types else ()))
    ]


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


def test_a_module_imports_what_its_room_may() -> None:
    wrong = {name: forbidden(name, path.read_text()) for name, path in sources().items()}
    assert {name: imports for name, imports in wrong.items() if imports} == {}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("strategies.averaging.x", "from client_app.app import app"),
        ("strategies.averaging.x", "from strategies.projection.pfa import PFA"),
        ("strategies.core.x", "from strategies.averaging.fedavg import FedAvg"),
        ("client_app.site.x", "import strategies.core.base"),
        ("client_app.site.x", "from client_app.training.trainer import Trainer"),
        ("client_app.app", "from hdpfl_tools.site.commands import plan"),
        ("hdpfl_tools.site.approval.launcher", "from hdpfl_flower.config import terms"),
        ("client_app.app", "from hdpfl_tools.site.approval.fab import read_bundle"),
        ("hdpfl_flower.wire", "def f():\n    from server_app.run import rounds"),
        ("hdpfl_flower.linalg.x", "from hdpfl_flower.models import task"),
        ("hdpfl_flower.privacy.x", "from hdpfl_tools.simulation.scenarios import budgets"),
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


def test_no_circle_of_modules_in_functions_and_for_types_neither() -> None:
    known = frozenset(sources())
    graph = {
        name: {m for m in imported(path.read_text(), known, types=True) if m in known and m != name}
        for name, path in sources().items()
    }
    assert circle(graph) == []


def test_a_circle_of_modules_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    source = "if TYPE_CHECKING:\n    from client_app import app\n"
    assert imported(source, frozenset({"client_app.app"})) == []
    assert imported(source, frozenset({"client_app.app"}), types=True) == ["client_app.app"]


def test_packages_raise_and_do_not_assert() -> None:
    """``python -O`` removes asserts."""
    wrong = [
        f"{name}:{line}"
        for name, path in sources().items()
        for line in facts_of(path.read_text()).asserts
    ]
    assert wrong == []


def test_a_file_has_at_most_500_lines() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in sources().items()}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}


def test_a_room_has_at_most_15_modules() -> None:
    folders: dict[Path, int] = {}
    for path in sources().values():
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
    assert {str(f.relative_to(ROOT)): n for f, n in folders.items() if n > 15} == {}


def test_a_strategy_has_at_most_25_public_members_and_three_levels() -> None:
    """A part, such as ``+pfa``, holds the strategy that it acts around; so does the kernel."""
    from strategies import PARTS, STRATEGIES
    from strategies.core.base import HDPStrategy
    from strategies.core.kernel import Kernel

    for kind in (HDPStrategy, Kernel):
        assert len([name for name in vars(kind) if not name.startswith("_")]) <= 25
    classes = {one for table in (STRATEGIES, *PARTS) for one in table.values()}
    levels = {
        one.__name__: sum(issubclass(base, HDPStrategy) for base in one.__mro__) for one in classes
    }
    assert {name: number for name, number in levels.items() if number > 3} == {}


APP = ("hdpfl_flower", "strategies", "client_app", "server_app")
"""The packages of the app, all of them in the bundle that Flower sends."""
NOT_AT_A_SITE = ("strategies", "server_app", "hdpfl_tools", "studies", "hdpfl_flower.doors",
    "hdpfl_flower.estimators", "hdpfl_flower.clustering", "hdpfl_flower.weighting")  # fmt: skip
"""Rooms that no message reaches at a site."""


def reached(start: str) -> set[str]:
    """Return the modules that ``start`` imports, by any number of steps, in functions too."""
    modules, waiting, seen = frozenset(sources()), [start], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [m for m in imported(sources()[name].read_text(), modules) if m in modules]
    return seen


def test_no_module_of_the_app_imports_a_tool() -> None:
    """The one door is ``hdpfl_flower.system.tools.tool``; types come in no other way, either."""
    for module, path in sources().items():
        if module.partition(".")[0] in APP:
            assert not re.findall(r"^\s*(?:from|import) hdpfl_tools\b", path.read_text(), re.M), (
                module
            )


def test_a_site_reaches_no_tool_no_strategy_and_no_door() -> None:
    modules = reached("client_app.app")
    assert len(modules) > 50
    assert [name for name in sorted(modules) if name.startswith(NOT_AT_A_SITE)] == []
    assert "hdpfl_flower.estimators.noise_level" in reached("server_app.app")


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = {}
    for module, path in sources().items():
        for name in facts_of(path.read_text()).classes:
            places.setdefault(name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_every_public_name_is_documented() -> None:
    """Ruff's pydocstyle rules are on for the packages, and nothing there switches them off."""
    import tomllib

    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "D" in lint["select"]
    ignored = lint["per-file-ignores"]
    assert not any("D" in ignored.get(f"{package}/**", []) for package in PACKAGES)


ROOMS = (*PACKAGES, "benchmarks", "deploy", "docs")
"""Folders with docstrings in plain English."""
PRONOUN = re.compile(
    r"\b(who|whom|whoever|what|whatever|(every|some|any|no)(body| one)|everyone|someone|nothing)\b",
    re.IGNORECASE,
)
WORDS, SHARE = 10, 0.01
"""Bounds on the median of words in a first line, and on the share of lines with a pronoun."""


def test_first_lines_of_docstrings_are_short_and_plain() -> None:
    found = {
        room: [
            (f"{path.relative_to(ROOT)}: {line}", line)
            for path in sorted((ROOT / room).glob("**/*.py"))
            for line in facts_of(path.read_text()).first_lines
        ]
        for room in ROOMS
    }
    for room, lines in found.items():
        counts = {where: len(line.split()) for where, line in lines}
        long = [where for where, words in counts.items() if words > WORDS]
        assert median(len(line.split()) for _, line in lines) <= WORDS, (room, long)
    every = [pair for lines in found.values() for pair in lines]
    hits = [where for where, line in every if PRONOUN.search(line)]
    assert len(hits) < SHARE * len(every), hits


@pytest.mark.parametrize("line", ["What a site sends.", "Answer anybody.", "Tell no one."])
def test_a_pronoun_in_a_first_line_is_found(line: str) -> None:
    text = f'"""{line}\n\nMore.\n"""\nx = 1\n"""Number."""\n'
    assert facts_of(text).first_lines == [line, "Number."]
    assert PRONOUN.search(line)


EMPTY = {"found", "one", "own", "each", "part", "made", "kept", "known", "at"}
"""Names that do not say what a variable holds."""
VAGUE = re.compile(r"\b(who|whom|whose|what|nobody|such)\b", re.IGNORECASE)
EMPTY_SHARE, VAGUE_SHARE = 0.01, 0.02
"""Bounds on the shares of these variables, and of comments and sentences with a pronoun."""


def words_of(source: str) -> tuple[list[str], list[str]]:
    """Return the variables of a source, and the sentences of its docstrings and comments."""
    variables, sentences = [], re.findall(r"^\s*# (.+)", source, re.MULTILINE)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                variables.append(name)
            case ast.Expr(value=ast.Constant(value=str(text))):
                sentences += re.split(r"(?<=[.:;?!])\s+", text)
    return variables, sentences


def test_variables_say_what_they_hold_and_sentences_are_plain() -> None:
    texts = [path.read_text() for room in ROOMS for path in (ROOT / room).glob("**/*.py")]
    of_files = [words_of(text) for text in texts]
    variables, sentences = ([*chain.from_iterable(kind)] for kind in zip(*of_files, strict=True))
    assert sum(name in EMPTY for name in variables) <= EMPTY_SHARE * len(variables)
    vague = [sentence for sentence in sentences if VAGUE.search(sentence)]
    assert len(vague) <= VAGUE_SHARE * len(sentences), vague


def test_an_empty_name_and_a_vague_sentence_are_counted() -> None:
    variables, sentences = words_of('found = 1  # a\n# what it is\n"""A b. No such thing."""\n')
    assert [name in EMPTY for name in variables] == [True]
    assert [bool(VAGUE.search(text)) for text in sentences] == [True, False, True]


SHARED_NOISE = re.compile(
    r"shared.noise|noise = .?shared|[\"']shared[\"']|sum-of|\bcolluders\b|spare[-_]rounds|"
    r"least[-_]members|\bpeers?\b|sum_part|SumPart|sum-part|'members'"
)
"""Words of one source of noise: its value, keys, modules, message fields and classes."""
ITS_OWN = re.compile(r"shared_noise|sum_part|shared_keys|commands/(peers|members)\.py")


def test_a_source_of_noise_stands_in_few_files_beside_its_own() -> None:
    """A new one needs a row and its keys: all else asks the row for properties and halves."""
    files = [
        path.relative_to(ROOT).as_posix()
        for package in set(PACKAGES) - {"studies"}
        for path in sorted((ROOT / package).rglob("*"))
        if path.suffix in {".py", ".j2", ".toml"} and SHARED_NOISE.search(path.read_text())
    ]
    others = [file for file in files if not ITS_OWN.search(file)]
    assert "hdpfl_flower/noise_sources.py" in others
    assert len(files) - len(others) > 10
    # Attackers of other runs collude, too.
    assert len(set(others) - {"strategies/guards/content.py"}) <= 8, others
