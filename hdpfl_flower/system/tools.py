"""The one door from the app to the tools beside it, for simulations and a server's own files."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hdpfl_flower.errors import InstallationError


def tool(name: str) -> Any:
    """Import a module of ``hdpfl_tools``, which the wheel has and no app holds.

    A site calls it for a profile with ``[simulation]`` and under Ray alone: a deployed one runs
    without that package.

    Raises:
        InstallationError: the wheel of hdpfl-flower is not installed.
    """
    try:
        return import_module(f"hdpfl_tools.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "hdpfl_tools":
            raise
        raise InstallationError(
            "this needs the tools of hdpfl-flower, which are in its wheel: pip install hdpfl-flower"
        ) from None
