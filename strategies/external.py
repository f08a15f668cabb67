"""Strategies of users' own: a class named ``module:Class``, imported at the server alone.

A site gets the name as text and imports nothing. The module must be importable where the ServerApp
or ``hdpfl`` runs: installed, on ``PYTHONPATH``, or a file in the current directory.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

from hdpfl_flower.errors import StrategyError
from strategies.core.base import HDPStrategy

_NAME = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<kind>[A-Za-z_]\w*)", re.ASCII)


def is_external(name: str) -> bool:
    """Return whether ``name`` is of the form ``module:Class``.

    >>> is_external("my_strategies:TrimmedMean"), is_external("fedavg")
    (True, False)
    """
    return ":" in name


def load_strategy(name: str) -> type[HDPStrategy]:
    """Return the class that ``module:Class`` names; the current directory is searched last.

    Raises:
        StrategyError: names the key, what was searched for, and where.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise StrategyError(f"'strategy': '{name}': write 'module:Class', such as my_rules:Median")
    module, kind = found["module"], found["kind"]
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise StrategyError(
                f"'strategy': '{name}': module '{module}' imports '{error.name}', which is not "
                "installed here; install it"
            ) from None
        raise StrategyError(
            f"'strategy': '{name}': there is no module '{module}' in {here}, nor in the other "
            f"{len(sys.path) - 1} entries of Python's path; start the server in its folder, "
            "install it, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise StrategyError(
            f"'strategy': '{name}': module '{module}' cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    where = getattr(loaded, "__file__", None) or module
    strategy = getattr(loaded, kind, None)
    if strategy is None:
        raise StrategyError(f"'strategy': '{name}': {where} has no class '{kind}'")
    if not (isinstance(strategy, type) and issubclass(strategy, HDPStrategy)):
        raise StrategyError(
            f"'strategy': '{name}': '{kind}' in {where} is no subclass of "
            "strategies.core.base.HDPStrategy"
        )
    if not isinstance(getattr(strategy, "name", None), str):
        raise StrategyError(f"'strategy': '{name}': '{kind}' in {where} has no 'name'; set one")
    return strategy
