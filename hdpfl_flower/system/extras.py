"""Libraries that only some uses need: an extra of the package each, named where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal

from hdpfl_flower.errors import InstallationError

Extra = Literal[
    "simulation",
    "plots",
    "metrics",
    "tables",
    "images",
    "opacus",
    "bench",
    "tensorboard",
    "mlflow",
]


@contextmanager
def extra(name: Extra, use: str) -> Iterator[None]:
    """Import, in the body, the libraries of the extra ``name``, which ``use`` needs.

    A library that is there but whose own import fails raises what it raises.

    Args:
        name: the extra, as pyproject.toml names it.
        use: what needs it, the subject of the error.

    Raises:
        InstallationError: a library is not installed; the text names the extra to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(name, use, (error.name or "a library").partition(".")[0]) from None


def is_installed(library: str) -> bool:
    """Return whether ``library``, a top-level module, is installed; it is not imported."""
    return find_spec(library) is not None


def missing(name: Extra, use: str, library: str) -> InstallationError:
    """Return the error for ``library`` of the extra ``name``, which is not installed."""
    return InstallationError(
        f"{use} needs {library}, which is not installed; run: pip install 'hdpfl-flower[{name}]'"
    )
