"""External strategies: classes ``module:Class``, imported at the server only.

A site gets the name as text and imports nothing. The module must be importable where the ServerApp
or ``hdpfl`` runs: installed, on ``PYTHONPATH``, or a file in the current directory.
"""

from __future__ import annotations

import sys

from hdpfl_flower.errors import StrategyError
from hdpfl_flower.system.own_code import load_own
from hdpfl_flower.system.own_traceback import search_here
from strategies.core.base import HDPStrategy


def is_external(name: str) -> bool:
    """Return whether ``name`` is of the form ``module:Class``.

    >>> is_external("my_strategies:TrimmedMean"), is_external("fedavg")
    (True, False)
    """
    return ":" in name


def load_strategy(name: str) -> type[HDPStrategy]:
    """Return the class of ``module:Class``; the current directory is searched last.

    Raises:
        StrategyError: names the key, the class that was searched for, and the place.
    """
    search_here()
    strategy = load_own(name, "strategy", StrategyError, "class")
    kind = name.partition(":")[2]
    where = getattr(sys.modules[name.partition(":")[0]], "__file__", None) or name
    fault = "is not a subclass of strategies.core.base.HDPStrategy; make it one"
    if isinstance(strategy, type) and issubclass(strategy, HDPStrategy):
        if isinstance(getattr(strategy, "name", None), str):
            return strategy
        fault = "has no 'name'; set one"
    raise StrategyError(f"'strategy': '{name}': '{kind}' in {where} {fault}")
