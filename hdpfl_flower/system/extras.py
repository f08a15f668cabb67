"""Optional libraries, each in an extra named when missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal

from hdpfl_flower.errors import InstallationError

Extra = Literal[
    "simulation", "plots", "metrics", "import", "images", "opacus", "tensorboard", "mlflow"
]


@contextmanager
def extra(name: Extra, use: str) -> Iterator[None]:
    """Import the libraries of extra ``name`` in the body.

    An installed library that cannot be imported raises its own exception.

    Args:
        name: the extra, as pyproject.toml names it.
        use: the feature that needs it, the subject of the error.

    Raises:
        InstallationError: a library is not installed; the text names the extra to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(name, use, (error.name or "a library").partition(".")[0]) from None


def is_installed(library: str) -> bool:
    """Return whether the top-level module ``library`` is installed, without importing it."""
    return find_spec(library) is not None


def missing(name: Extra, use: str, library: str) -> InstallationError:
    """Return the error for ``library`` missing from extra ``name``."""
    return InstallationError(
        f"{use} needs {library}, which is not installed; run: pip install 'hdpfl-flower[{name}]'"
    )
