"""User's project: the app beside a package of the user's modules.

Flower bundles the content of an app's folder, and nothing else. So the project holds a copy of the
app's four packages: the bundle is the app as it is installed here, with the user's package in it,
and a site approves it by its SHA-256 like any other.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from hdpfl_flower.config.named_files import with_files
from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.tables import Row, flat_rows, table_rows
from hdpfl_flower.config.toml_text import as_toml
from hdpfl_flower.errors import TermsError
from hdpfl_flower.versions import __version__

APP = ("hdpfl_flower", "strategies", "client_app", "server_app")
"""The packages of the app."""
HEAD = "[tool.flwr.app.config]"
TEMPLATE = Path(__file__).parent / "template"

_ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,38}")
_FILES = {
    "PACKAGE/__init__.py": "__init__.py",
    "PACKAGE/strategy.py": "strategy.py",
    "PACKAGE/data.py": "data.py",
    "PACKAGE/model.py": "model.py",
    "README.md": "README.md",
    "run.toml": "run.toml",
    "pyproject.toml": "project.toml",
    "tests/test_PACKAGE.py": "test_project.txt",
}
"""A project's files, and their templates."""
_WITH_BACKBONE = {file: text for file, text in _FILES.items() if file != "PACKAGE/model.py"} | {
    "PACKAGE/data.py": "image_data.py",
    "PACKAGE/backbone.py": "backbone.py",
    "README.md": "backbone_README.md",
    "run.toml": "backbone_run.toml",
    "tests/test_PACKAGE.py": "test_backbone.txt",
}


def package_of(name: str) -> str:
    """Return the package of the project ``name``, hyphens replaced.

    Raises:
        TermsError: Flower accepts no app of that name, or another module has the package's name.

    >>> package_of("heart-risk")
    'heart_risk'
    """
    if not _NAME.fullmatch(name) or name.endswith("-"):
        raise TermsError(
            f"'{name}' cannot be the name of a project; use at most 39 letters, digits and "
            "hyphens, with a letter first, such as heart-risk"
        )
    package = name.replace("-", "_").lower()
    taken = package in (*APP, "studies", "tests") or package in sys.stdlib_module_names
    if taken or keyword.iskeyword(package) or find_spec(package) is not None:
        raise TermsError(
            f"'{name}': there is already a module '{package}', and Python would import only one "
            "of the two; choose another name"
        )
    return package


def write_project(folder: Path, *, backbone: bool = False, only: bool = False) -> str:
    """Write a project to the new ``folder``; return its package's name.

    Args:
        folder: of the project; its last part is the name.
        backbone: whether the model reads a frozen network; its file of weights is made here.
        only: whether the app leaves out the kinds that ``run.toml`` does not name.

    Raises:
        TermsError: the name is no project's, or the folder is there or cannot be written.
    """
    name = folder.name
    if folder.exists():
        raise TermsError(
            f"{folder} exists already and is not overwritten; choose another name, or renew its "
            f"copy of the app with: hdpfl new {folder} --renew"
        )
    package = package_of(name)
    files = _WITH_BACKBONE if backbone else _FILES
    with _writing():
        folder.mkdir(parents=True)
        if backbone:
            from hdpfl_tools.coordinator.template.backbone import FILE, write_weights

            write_weights(folder / FILE)
        for file, text in files.items():
            content = _renamed(TEMPLATE / text, package, name)
            if HEAD in content:
                terms = tomllib.loads(_renamed(TEMPLATE / files["run.toml"], package, name))
                # Flower starts the server in another folder: weights by their digest.
                content = content.replace(HEAD, run_config_table(with_files(terms, folder)))
            _write(folder / file.replace("PACKAGE", package), content)
        _write(folder / ".gitignore", "__pycache__/\n*.fab\n/runs/\n")
        copy_app(folder, not_needed(folder) if only else frozenset())
    return package


def renew_app(folder: Path, *, only: bool = False) -> None:
    """Replace a project's copy of the app by the installed app.

    Args:
        folder: of the project.
        only: as for :func:`write_project`.

    Raises:
        TermsError: there is no project in ``folder``, it cannot be written, or ``only`` is asked
            for and its ``run.toml`` is wrong.
        StrategyError: that of ``run.toml`` cannot be loaded.
    """
    if not _is_project(folder):
        raise TermsError(f"{folder.absolute()} is not a project; write one with: hdpfl new NAME")
    without = not_needed(folder) if only else frozenset[str]()
    with _writing():
        for package in APP:
            shutil.rmtree(folder / package, ignore_errors=True)
        copy_app(folder, without)


@contextmanager
def _writing() -> Iterator[None]:
    """Refuse a file that cannot be written; raises ``TermsError``."""
    try:
        yield
    except OSError as error:
        raise TermsError(f"{error.filename} cannot be written: {error.strerror}") from None


def _is_project(folder: Path) -> bool:
    """Return whether ``folder`` holds a project, not the app itself."""
    try:
        content = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8-sig"))
        named = any(text.startswith("hdpfl-flower") for text in content["project"]["dependencies"])
    except (OSError, ValueError, LookupError, TypeError):
        return False
    return named and content["project"]["name"] != "hdpfl-flower" and folder.resolve() != _ROOT


def not_needed(folder: Path) -> frozenset[str]:
    """Return the files of the app that the run of a project's ``run.toml`` does not need.

    Raises:
        TermsError, StrategyError: the run config is wrong, or its strategy cannot be loaded.
    """
    from hdpfl_tools.coordinator.kinds_of_run import left_out
    from strategies import make_kernel

    config = RunConfig.load(folder / "run.toml")
    sys.path.append(str(folder.absolute()))  # last: the packages installed here come first
    try:
        return left_out(make_kernel(config).terms)
    finally:
        sys.path.remove(str(folder.absolute()))


def copy_app(folder: Path, without: Collection[str] = ()) -> None:
    """Copy the installed app and its licence to ``folder``, but for files ``without``."""
    for package in APP:
        for pattern in ("*.py", "data/schemas/*.toml"):
            for file in sorted((_ROOT / package).rglob(pattern)):
                name = file.relative_to(_ROOT)
                if name.as_posix() in without:
                    continue
                copy = folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    (folder / "LICENSE").write_text(_licence(), encoding="utf-8")


def run_config_table(changed: Mapping[str, Value] = {}) -> str:
    """Return a ``pyproject.toml``'s run config table with head, one key per line.

    Args:
        changed: defaults that a project replaces, by key.
    """
    from server_app.app import RESUME_FROM
    from strategies import SETTINGS_OWNERS
    from strategies.settings import setting_rows

    lines = [
        f"{HEAD}  # every key with its default; docs/run_config.py writes this table",
        f'{RESUME_FROM} = ""  # only the server reads it; it is not a term',
    ]

    def line(row: Row, key: str) -> str:
        return f"{key} = {as_toml(changed.get(row.key, row.default))}"

    lines += [line(row, row.key) for row in flat_rows()]
    settings = [*table_rows(), *setting_rows(SETTINGS_OWNERS)]
    for name, rows in groupby(settings, key=lambda row: row.group):
        lines += ["", f"[tool.flwr.app.config.{name}]"]
        lines += [line(row, row.key.removeprefix(f"{name}.")) for row in rows]
    return "\n".join(lines)


def _renamed(file: Path, package: str, name: str) -> str:
    """Return a template's text with the project's names."""
    text = file.read_text(encoding="utf-8")
    for word, value in {"PACKAGE": package, "PROJECT": name, "VERSION": __version__}.items():
        text = text.replace(word, value)
    return text


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _licence() -> str:
    """Return the app's licence, which its copy carries."""
    try:
        text = distribution("hdpfl-flower").read_text("licenses/LICENSE")
    except PackageNotFoundError:
        text = None
    return text or (_ROOT / "LICENSE").read_text(encoding="utf-8")
