"""Help without the imports of any command, and the same help as with them."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import typer

from hdpfl_flower.config.data_source import DataSource, QueryTable
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.errors import InstallationError
from hdpfl_flower.models.image_networks import import_torchvision
from hdpfl_flower.models.task import Task
from hdpfl_flower.system.extras import Extra, extra
from hdpfl_tools.coordinator.commands import COMMANDS
from hdpfl_tools.coordinator.commands import app as hdpfl
from hdpfl_tools.shell.prometheus import Exporter
from hdpfl_tools.simulation.scenarios.partitions import split
from hdpfl_tools.site.commands import COMMANDS as SITES
from hdpfl_tools.site.commands import app as hdpfl_site
from hdpfl_tools.tables.images.image_folder import read_images
from hdpfl_tools.tables.sources.csv_rows import Form
from hdpfl_tools.tables.sources.other_makers import READERS, postgresql_rows
from hdpfl_tools.tables.sources.query import query_rows
from server_app.plots import check_pictures, plot_panels, plot_run

LINES = {"hdpfl_tools.coordinator": (hdpfl, COMMANDS), "hdpfl_tools.site": (hdpfl_site, SITES)}
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


# --- what an extra holds is needed by its own use alone, and its error names it


ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMAGES = Task.classification((1, 8, 8), 10)
LABELS = np.arange(100) % 10
ROUND = {"event": "round", "round": 1, "asked": [], "accepted": [], "rejections": {}, "weights": [],
         "metrics": {}}  # fmt: skip


def queried(path: Path) -> DataSource:
    return DataSource(query="SELECT 1", tables={"t": QueryTable(path=path)}, id="t")


USES: Mapping[str, tuple[str, str, Callable[[Path], object]]] = {
    "splits": ("simulation", "flwr_datasets", lambda _: split(LABELS, None, 2, "shards:2", 1)),
    "curves": ("plots", "matplotlib", lambda path: plot_panels({}, path / "a.png", "")),
    "run": ("plots", "matplotlib", lambda path: plot_run([ROUND], path / "a.png")),
    "any picture": ("plots", "matplotlib", lambda _: check_pictures()),
    "exporter": ("metrics", "prometheus_client", lambda _: Exporter("site", list)),
    "workbook": ("import", "python_calamine", lambda path: READERS["excel"](path, Form())),
    "statistics": ("import", "pyreadstat", lambda path: READERS["spss"](path, Form())),
    "query": ("import", "duckdb", lambda path: query_rows(queried(path))),
    "database": ("import", "psycopg", lambda _: postgresql_rows("host=x", Form())),
    "images": ("images", "PIL", lambda path: read_images(path, IMAGES)),
    "resnet": ("images", "torchvision", lambda _: import_torchvision("models")),
    "engine": ("opacus", "opacus", lambda _: engine_for("logreg", IMAGES, "opacus", "cpu")),
}


@pytest.mark.parametrize("use", USES)
def test_missing_extras_named(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, library, call = USES[use]
    for loaded in [key for key in sys.modules if key.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, library, None)
    engine_for.cache_clear()
    with pytest.raises(InstallationError) as caught:
        call(tmp_path)
    text = str(caught.value)
    assert f"needs {library}, which is not installed" in text
    assert text.endswith(f"pip install 'hdpfl-flower[{name}]'")
    assert len(text.splitlines()) == 1


TRACKERS = ("tensorboard", "mlflow")
"""Of another program's hundred packages each; `all` leaves them out."""


def test_a_library_that_is_there_and_fails_is_not_called_missing(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="no symbol"), extra("plots", "a picture"):
        raise ImportError("no symbol")


def test_the_extras_are_those_of_the_project() -> None:
    assert {*get_args(Extra), "all", "dev"} <= set(PROJECT["optional-dependencies"])
    everything = PROJECT["optional-dependencies"]["all"]
    needed = [extra for extra in get_args(Extra) if extra not in TRACKERS]
    assert everything == [f"hdpfl-flower[{','.join(needed)}]"]


WITHOUT_EXTRAS = """
import sys
BLOCKED = {blocked!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())

from pathlib import Path
from hdpfl_tools.site.commands import app
from hdpfl_tools.coordinator.commands import app as hdpfl
from tests.client_app.messages import ask, make_site, terms_of

profile, terms = make_site(Path({folder!r})), terms_of()
app(["profile", "check", "--profile", str(profile)], standalone_mode=False)
reply = ask(profile, terms)
assert not reply.has_error(), reply.error
app(["report", "--profile", str(profile)], standalone_mode=False)
hdpfl(["compare", "--strategies", "robust-hdp", "--clients", "2", "--seeds", "1", "--rounds", "1",
       "--jobs", "1", "--out", {out!r}], standalone_mode=False)
"""
BLOCKED = {
    "PIL", "datasets", "duckdb", "flwr_datasets", "matplotlib", "opacus", "openpyxl", "pandas",
    "prometheus_client", "psycopg", "pyreadstat", "python_calamine", "ray", "torchvision",
}  # fmt: skip


@pytest.mark.slow
def test_a_site_and_a_comparison_work_without_any_extra(tmp_path: Path) -> None:
    """A deployed site with a CSV is checked, trains and reports; two simulated sites train."""
    out = tmp_path / "out"
    code = WITHOUT_EXTRAS.format(blocked=BLOCKED, folder=str(tmp_path / "site"), out=str(out))
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "ε 1.235 of 2.469; 1.234 is left" in ended.stdout, ended.stdout
    assert "no picture: a picture needs matplotlib" in ended.stdout
    assert (out / "comparison.json").is_file()
    assert not list(out.rglob("*.png"))
