"""README and the documentation are held against the code; the reference pages are made from it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import typer.main
from pydantic import BaseModel, Field

from hdpfl_flower.config.run_config import GROUPS, RunConfig
from hdpfl_flower.config.tables import table_rows
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import RoundUpdates
from hdpfl_tools.contract import run_contract
from strategies import SETTINGS_OWNERS, STRATEGIES, make_strategy
from strategies.settings import setting_rows
from tests.mutants.table import MUTANTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TABLES = DOCS / "results" / "tables"
_NAMES = ("terms", "profile", "schema", "cli-hdpfl", "cli-hdpfl-site", "metrics", "combinations",
              "wire", "api", "site-code")  # fmt: skip
GENERATED = {DOCS / "reference" / f"{name}.md" for name in _NAMES}
PAGES = sorted(
    path for path in DOCS.rglob("*.md") if path.parent != TABLES and path not in GENERATED
)
READ_ON_GITHUB = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docker/README.md")
]
ALL = (*READ_ON_GITHUB, *PAGES)


COUNT = re.compile(r"(?<=[ |])[\d,]*\d(?= )")
"""A number that stands alone."""


@cache
def pages() -> ModuleType:
    """Return ``docs/pages.py``, which MkDocs loads by its path."""
    spec = importlib.util.spec_from_file_location("docs_pages", DOCS / "pages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def generated() -> dict[str, str]:
    return {
        name: make() for table in (pages().PAGES, pages().COPIES) for name, make in table.items()
    }


def commands(name: str) -> dict[tuple[str, ...], set[str]]:
    """Return the options of every command of a command line."""
    if name == "hdpfl":
        from hdpfl_tools.coordinator.commands import app
    else:
        from hdpfl_tools.site.commands import app
    found: dict[tuple[str, ...], set[str]] = {}
    group: Any = typer.main.get_command(app)
    for outer, command in group.commands.items():
        for inner, leaf in getattr(command, "commands", {"": command}).items():
            options = {option for parameter in leaf.params for option in parameter.opts}
            found[(outer, inner) if inner else (outer,)] = options
    return found


def shown(program: str) -> Iterator[tuple[Path, list[str]]]:
    """Yield the words of every line that calls a program, in the console blocks of all pages."""
    for path in ALL:
        for line in re.findall(rf"^ *\$ (?:\S*/)?{program} (.*)$", path.read_text(), re.M):
            yield path, shlex.split(line, comments=True)


def test_the_guide_of_a_site_shows_every_command() -> None:
    known = commands("hdpfl-site")
    lines = [line for path, line in shown("hdpfl-site") if path.name == "site.md"]
    names = {tuple(line[:2]) if tuple(line[:2]) in known else tuple(line[:1]) for line in lines}
    assert names == set(known)


def test_every_strategy_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in STRATEGIES if f"`{name}`" not in text] == []


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for path in ALL:
        named = re.findall(r"(?:`|^ *\$ |&& |[A-Z]+=\S+ )make ([a-z-]+)", path.read_text(), re.M)
        assert set(named) <= targets, path.name


def test_every_file_of_the_code_that_a_page_names_exists() -> None:
    rooms = "hdpfl_flower|strategies|client_app|server_app|studies|deploy|docker|tests|benchmarks"
    named = {
        (path.name, name)
        for path in ALL
        for name in re.findall(rf"`((?:{rooms})/[\w./-]+\.\w+)`", path.read_text())
    }
    assert len(named) > 30
    assert [found for found in named if not (ROOT / found[1]).exists()] == []


def test_every_key_that_a_page_sets_exists() -> None:
    """In ``--set KEY=VALUE``, and in a text of the form ``key = value``."""
    profile = re.findall(r"^\| `([a-z-]+)` \|", generated()["reference/profile.md"], re.M)
    settings = {row.key for row in (*table_rows(), *setting_rows(SETTINGS_OWNERS))}
    given = {*RunConfig.keys(), *settings}
    named = {
        *given,
        *profile,
        *(f"{table}.{key}" for table in ("policy", "training", "data") for key in profile),
        *(key.rpartition(".")[2] for key in settings),
    }
    count = 0
    for path in ALL:
        for key in re.findall(r"--set ([a-z.-]+)=", path.read_text()):
            assert key in given, f"{path.name}: {key}"
            count += 1
        for key in re.findall(r"`([a-z][a-z.-]*) = ", path.read_text()):
            assert key in named, f"{path.name}: {key}"
            count += 1
    assert count > 8


def test_every_message_that_a_page_explains_is_in_the_code() -> None:
    """Of the messages in the tables *When something is wrong*; Flower's own are left out."""
    templates = (ROOT / "hdpfl_tools" / "site" / "commands" / "texts").glob("*.j2")
    said = "\n".join(path.read_text() for path in templates) + "\n".join(
        node.value
        for room in (
            "hdpfl_flower",
            "client_app",
            "server_app",
            "strategies",
            "hdpfl_tools",
            "deploy",
        )
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    count = 0
    for name, column in (("site.md", 1), ("deploy.md", 2)):
        text = (DOCS / "how-to" / name).read_text().partition("## When something is wrong")[2]
        for cell in [row.split("|")[column] for row in re.findall(r"^\| .*$", text, re.M)[1:]]:
            for part in re.split(r"…|`|, |: ", cell.partition(" (")[0]):
                if len(part.strip()) > 12 and "Exit Code" not in part:
                    assert part.strip() in said, f"{name}: {part}"
                    count += 1
    assert count > 8


def test_links_lead_somewhere_without_a_build() -> None:
    """GitHub shows the repository's Markdown as it is; MkDocs holds the links of the site."""
    wrong = []
    for path in (*ALL, *GENERATED):
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        for link, section in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)]*)\)", text):
            target = path.parent / link if link else path
            if not target.exists() or (section and section not in sections(target)):
                wrong.append(f"{path.name}: {link}#{section}")
    assert wrong == []


def test_the_committed_reference_is_that_of_the_code() -> None:
    assert {DOCS / name for name in pages().PAGES} == GENERATED
    for name, make in pages().PAGES.items():
        committed, current = (DOCS / name).read_text(), make()
        if name == "reference/site-code.md":  # lines of files change with every commit
            numbers = [
                [int(n.replace(",", "")) for n in COUNT.findall(t)] for t in (committed, current)
            ]
            np.testing.assert_allclose(*numbers, rtol=0.1, atol=40)
            committed, current = COUNT.sub("#", committed), COUNT.sub("#", current)
        assert committed == current, f"{name}: run python docs/pages.py"


def test_the_api_page_describes_every_public_name() -> None:
    import hdpfl_flower

    page = generated()["reference/api.md"]
    assert sorted(re.findall(r"^### `(\w+)`$", page, re.M)) == sorted(
        {*hdpfl_flower.__all__, "run", "HDPStrategy"} - {"__version__"}
    )
    assert "**Raises**\n\n* `AccountingError`: " in page
    assert not re.search(r"^={4,}|^::: |^>>> (?!.*\n)|:func:`", page, re.M)


def sections(path: Path) -> set[str]:
    """Return what links may name in a page, as GitHub derives it from the headings."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_table_of_results_is_shown() -> None:
    text = "".join(path.read_text() for path in PAGES)
    assert {f"{path.stem}.md" for path in TABLES.glob("*.md")} == set(
        re.findall(r'^--8<-- "(.*)"$', text, re.M)
    )


def test_an_example_keeps_its_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, with_memory = re.findall(
        r"```python[^\n]*\n(.*?)```", (DOCS / "how-to" / "add-a-strategy.md").read_text(), re.S
    )
    (tmp_path / "strategy_of_the_page.py").write_text(code)
    (tmp_path / "memory_of_the_page.py").write_text(with_memory)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not [wrong for _, wrong in run_contract("memory_of_the_page:OwnMomentum") if wrong]
    name = "strategy_of_the_page:InverseLength"
    assert [(check, wrong) for check, wrong in run_contract(name) if wrong] == []
    strategy = make_strategy(RunConfig.parse({"strategy": name}))
    rows = RoundUpdates(1, ("a", "b"), np.array([[3, 4], [6, 8]], np.float32))
    _, outcome = strategy.combine(strategy.initial_state(), rows, RandomStream(bytes(32)))
    assert outcome.weights == pytest.approx([11 / 17, 6 / 17])


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(tmp_path: Path) -> None:
    """Its files and commands, in their order; numbers, ids and paths aside."""
    page = (DOCS / "start" / "from-csv-to-report.md").read_text()
    blocks = re.findall(r"```(\w+)(?: title=\"(.*?)\")?\n(.*?)```", page, re.S)
    script = ["set -e", f"ln -s {ROOT}/deploy deploy"]
    expected: list[tuple[str, str]] = []
    for language, title, text in blocks:
        if title:
            script.append(f"cat > {title} <<'END'\n{text}END")
        elif language == "console":
            lines = [line.removeprefix("$ ") for line in text.splitlines()]
            script += [line for line in lines if "activate" not in line]
        else:
            name = f"{tmp_path}/out{len(expected)}"
            script[-1] += f" > {name}" if ">" not in script[-1] else ""
            expected.append((name, text))
    bin_dir = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{bin_dir}{os.pathsep}{os.environ['PATH']}",
        "HDPFL_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
        "NO_COLOR": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(["bash", "-c", "\n".join(script)], cwd=work, env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(expected) >= 9
    for name, text in expected:
        printed = {_shape(line) for line in Path(name).read_text().splitlines()}
        shown = {_shape(line) for line in text.splitlines() if line.strip() != "…"}
        assert shown <= printed, (name, shown - printed)


def _shape(line: str) -> str:
    """Return a line of output without its numbers, ids, paths and spaces."""
    line = re.sub(r"\S*/(?=ledger/|anchor/)", "", line)
    return re.sub(r"[-+]?\d[\w.-]*", "#", " ".join(line.split()))


# --- the generated pages -------------------------------------------------------------------------


def test_every_key_of_the_terms_has_its_row() -> None:
    rows = re.findall(r"^\| `([a-z.-]+)` \| (.*?) \| .* \| (.+) \|$", generated()[TERMS], re.M)
    assert len(rows) >= len(RunConfig.keys())
    about = GROUPS["terms"].model_fields["rounds"].description
    assert ("rounds", "whole number from 1", about) in rows


TERMS = "reference/terms.md"


def test_a_key_without_a_description_stops_the_build() -> None:
    class Silent(BaseModel):
        """A model."""

        rounds: int = Field(1)

    with pytest.raises(ValueError, match=r"Silent\.rounds"):
        pages().keys(Silent)


def test_the_command_lines_are_listed_with_their_options() -> None:
    for name in ("hdpfl", "hdpfl-site"):
        page = generated()[f"reference/cli-{name}.md"]
        for path, options in commands(name).items():
            _, _, rest = page.partition(f"## `{' '.join((name, *path))}`")
            section = re.split(r"\n##+ ", rest)[0]
            named = set(re.findall(r"(?:^\* `|, )(--[a-z0-9-]+)", section, re.M))
            assert {option for option in options if option.startswith("--")} <= named


def test_every_bug_that_is_put_back_is_listed() -> None:
    page = generated()["project/bugs-put-back.md"]
    listed = re.findall(r"^\| (.*?) \| `(.*?)` \| `tests/.*?` \|$", page, re.M)
    assert sorted(listed) == sorted((mutant.name, mutant.file) for mutant in MUTANTS)


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {"index.html", "reference/terms.html", "reference/api.html"} <= {
        str(page.relative_to(tmp_path)) for page in pages
    }
    for name in ("site-day", "federation", "study"):
        shown = (tmp_path / "notebooks" / f"{name}.html").read_text()
        assert shown.count(' highlight">') > 5 and "with its outputs" in shown
        assert '"stream"' in (tmp_path / "notebooks" / f"{name}.ipynb").read_text()
    loads = r"""<(?:script|img|iframe)[^>]*\bsrc=|<link[^>]*\bhref="""
    for page in pages:
        found = re.findall(rf"(?:{loads})['\"]?((?:https?:)?//[^'\" >]+)", page.read_text())
        assert found == [], page.name
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", style.read_text()), style
