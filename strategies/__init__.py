"""Aggregation rules: a file an algorithm, a row in this table; a projection goes with any."""

from __future__ import annotations

from functools import cache

from hdpfl_flower.config import RunTerms
from hdpfl_flower.errors import StrategyError
from strategies.base import HDPStrategy
from strategies.dp_fedavg import DPFedAvg, NonPrivate
from strategies.fedavg import FedAvg
from strategies.fedhdp import FedHDP
from strategies.leveled import Leveled
from strategies.maximum import Maximum
from strategies.minimum import Minimum
from strategies.oracle import Oracle
from strategies.pfa import PFA, PublicSubspace
from strategies.pfa_plus import PFAPlus
from strategies.projected import Projected
from strategies.public_only import PublicOnly
from strategies.random_projection import RandomProjection, RandomSubspace
from strategies.robust_hdp import RobustHDP
from strategies.robust_hdp_drift import RobustHDPDrift
from strategies.snr import SNR
from strategies.weiavg import WeiAvg

STRATEGIES: dict[str, type[HDPStrategy]] = {
    "fedavg": FedAvg,
    "minimum": Minimum,
    "maximum": Maximum,
    "weiavg": WeiAvg,
    "public-only": PublicOnly,
    "pfa": PFA,
    "pfa-plus": PFAPlus,
    "random-projection": RandomProjection,
    "robust-hdp": RobustHDP,
    "snr": SNR,
    "robust-hdp-drift": RobustHDPDrift,
    "oracle": Oracle,
    "fedhdp": FedHDP,
    "dp-fedavg": DPFedAvg,
    "non-private": NonPrivate,
}
"""Every rule by the name that users write in ``strategy``."""

PROJECTIONS: dict[str, type[Projected]] = {
    "pfa": PublicSubspace,
    "random": RandomSubspace,
}
"""What may follow the name of a rule that does not project, after a ``+``."""


def check_strategy(name: str) -> type[HDPStrategy]:
    """Return the rule of that name; ``robust-hdp+pfa`` is a rule's weights with a projection.

    Raises:
        StrategyError: there is none; the known ones are listed.
    """
    rule, plus, projection = name.partition("+")
    if rule not in STRATEGIES:
        raise StrategyError(
            f"'strategy': '{name}' is not known; choose one of {', '.join(STRATEGIES)}"
        )
    if not plus:
        return STRATEGIES[rule]
    if projection not in PROJECTIONS:
        raise StrategyError(
            f"'strategy': '{name}': after '+' comes a projection: {', '.join(PROJECTIONS)}"
        )
    if issubclass(STRATEGIES[rule], Projected):
        raise StrategyError(f"'strategy': '{name}': '{rule}' projects by itself")
    return _composed(rule, projection)


@cache
def _composed(rule: str, projection: str) -> type[HDPStrategy]:
    parts = {"name": f"{rule}+{projection}", "weighting": STRATEGIES[rule]}
    base = PROJECTIONS[projection]
    return type(f"{base.__name__}Of{STRATEGIES[rule].__name__}", (base,), parts)


def make_strategy(terms: RunTerms) -> HDPStrategy:
    """Return the rule that ``terms.strategy`` names.

    Raises:
        StrategyError: as :func:`check_strategy` does; or ``noise = server`` with a rule that adds
            none: sites' updates would go into the model as they are.
    """
    rule = check_strategy(terms.strategy)
    if terms.noise == "server" and not issubclass(rule, Leveled):
        raise StrategyError(
            f"'noise' = 'server': '{terms.strategy}' adds no noise; take fedhdp or dp-fedavg, or "
            "leave the noise to the sites"
        )
    return rule(terms)
