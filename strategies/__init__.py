"""Aggregation rules: a file an algorithm, a row in this table."""

from __future__ import annotations

from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import StrategyError
from strategies.base import HDPStrategy
from strategies.fedavg import FedAvg
from strategies.minimum import Minimum
from strategies.oracle import Oracle
from strategies.robust_hdp import RobustHDP

STRATEGIES: dict[str, type[HDPStrategy]] = {
    "fedavg": FedAvg,
    "minimum": Minimum,
    "robust-hdp": RobustHDP,
    "oracle": Oracle,
}
"""Every rule by the name that users write in ``strategy``."""


def check_strategy(name: str) -> type[HDPStrategy]:
    """Return the rule of that name.

    Raises:
        StrategyError: there is none; the known ones are listed.
    """
    rule = STRATEGIES.get(name)
    if rule is None:
        raise StrategyError(
            f"'strategy': '{name}' is not known; choose one of {', '.join(STRATEGIES)}"
        )
    return rule


def make_strategy(terms: RunTerms) -> HDPStrategy:
    """Return the rule that ``terms.strategy`` names; raises as :func:`check_strategy` does."""
    return check_strategy(terms.strategy)(terms)
