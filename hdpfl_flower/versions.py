"""Versions of this package and its numerical libraries."""

from __future__ import annotations

import platform
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_NAME = "hdpfl-flower"


def _own_version() -> str:
    """Return the version from ``pyproject.toml`` or the installed metadata.

    A Flower app bundle and a checkout hold the file; a wheel holds its metadata.
    """
    beside = Path(__file__).parents[1] / "pyproject.toml"
    if beside.is_file():
        project = tomllib.loads(beside.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == _NAME:
            return str(project["version"])
    return version(_NAME)


__version__ = _own_version()

_PARTS = ("flwr", "torch", "numpy", "opacus", "dp-accounting", "scipy", "scikit-learn")
"""Libraries that compute a run's numbers."""


def versions() -> dict[str, str]:
    """Return name → version of package, Python and numerical libraries."""
    by_name = {_NAME: __version__, "python": platform.python_version()}
    for library in _PARTS:
        try:
            by_name[library] = version(library)
        except PackageNotFoundError:
            by_name[library] = "not installed"
    return by_name
