"""Tools of sites, coordinators and researchers, beside the app that Flower sends.

:func:`run` runs a federation in this process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdpfl_tools.simulation.in_process.in_process_run import run_in_process as run

__all__ = ["run"]

_APP = ("client_app", "server_app", "strategies")
"""Packages of the app that a user's file may hide."""


def __getattr__(name: str) -> Any:
    """Import ``run``; raises ``ImportError`` if a user's file hides a package of the app."""
    if name != "run":
        raise AttributeError(f"module 'hdpfl_tools' has no public name '{name}'")
    try:
        from hdpfl_tools.simulation.in_process.in_process_run import run_in_process
    except ModuleNotFoundError:
        if hidden := _hidden_by():
            raise ImportError(hidden) from None
        raise
    return run_in_process


def _hidden_by() -> str:
    """Return the file that hides a package, with the remedy, or empty."""
    for package in _APP:
        loaded = sys.modules.get(package)
        places = [getattr(loaded, "__file__", None), *getattr(loaded, "__path__", ())]
        ours = Path(__file__).parents[1] / package
        if other := next((p for p in places if p and not Path(p).is_relative_to(ours)), None):
            return (
                f"{other} hides the package '{package}' of hdpfl-flower; rename it, or start "
                "Python from another folder"
            )
    return ""
