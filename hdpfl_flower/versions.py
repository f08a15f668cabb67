"""Which versions of what computed a run: for its journal, its report and its checkpoint."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

VERSION = "0.1.0"
"""Of this package; an app bundle has no metadata to read it from."""

_PARTS = ("flwr", "torch", "numpy", "opacus", "dp-accounting", "scipy", "scikit-learn")
"""What the numbers of a run come from."""


def versions() -> dict[str, str]:
    """Return name → version, of this package, Python and what the numbers come from."""
    found = {"hdpfl-flower": VERSION, "python": platform.python_version()}
    for part in _PARTS:
        try:
            found[part] = version(part)
        except PackageNotFoundError:
            found[part] = "not installed"
    return found
