"""An app's files in the order of a message: all that imports reach, nothing executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_app.site.app_digest import PACKAGES
from hdpfl_tools.site.approval.reading import STAGES, site_files
from tests.test_architecture import ROOT, reached, sources

APP = {
    path.relative_to(ROOT).as_posix(): path.read_bytes()
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
}


def test_the_files_are_those_that_the_imports_reach() -> None:
    names = {file.name for file in site_files(APP)}
    # Of a site's own package all modules count: some are loaded by the name of a kind.
    site_modules = [module for module in sources() if module.partition(".")[0] == "client_app"]
    expected = {
        sources()[module].relative_to(ROOT).as_posix()
        for start in site_modules
        for module in reached(start)
    }
    packages = {name for name in names - expected if name.endswith("__init__.py")}
    assert names - packages == expected - packages
    assert not [name for name in names if name.startswith(("strategies/", "server_app/"))]


def test_a_message_is_in_order() -> None:
    files = site_files(APP)
    assert [file.stage for file in files] == sorted(file.stage for file in files)
    assert {file.stage for file in files} == set(range(len(STAGES)))
    place = {file.name: file.stage for file in files}
    ways = ("client_app/app.py", "hdpfl_flower/config/terms.py", "client_app/site/consent.py",
            "hdpfl_flower/privacy/plan.py", "hdpfl_flower/ledger/site_ledger.py",
            "client_app/training/trainer.py")  # fmt: skip
    assert [place[name] for name in ways] == sorted({place[name] for name in ways})


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import strategies.core.base", True),
        ("def f():\n    from strategies.core import base", True),
        ("import os, strategies.core.base as b", True),
        ("if TYPE_CHECKING:\n    import strategies.core.base", False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import strategies.core.base", True),
        ("text = 'import strategies.core.base'", False),
        ("import strategies.core.base(", False),
    ],
)
def test_an_import_is_found_in_any_form(line: str, found: bool) -> None:
    changed = {**APP, "client_app/site/consent.py": line.encode()}
    names = {file.name for file in site_files(changed)}
    assert ("strategies/core/base.py" in names) == found
    assert "client_app/site/consent.py" in names


def test_every_module_of_the_projects_own_package_counts(tmp_path: Path) -> None:
    """Terms can name a model of it, which no import shows."""
    note = tmp_path / "ran"
    text = f"open({str(note)!r}, 'w')\nimport strategies\nimport hdpfl_flower.doors.dp_sgd"
    own = {"heart/net.py": text.encode()}
    names = {file.name for file in site_files({**APP, **own})}
    assert {"heart/net.py", "hdpfl_flower/doors/dp_sgd.py"} <= names
    assert "strategies/__init__.py" not in names, "a site imports no strategy"
    assert not note.exists()
