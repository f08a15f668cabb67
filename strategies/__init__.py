"""Aggregation rules: a file an algorithm, a row in this table; parts that go with any rule."""

from __future__ import annotations

from functools import cache

from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from strategies.core.base import HDPStrategy
from strategies.averaging.ditto import Ditto
from strategies.fedhdp.dp_fedavg import DPFedAvg, NonPrivate
from strategies.averaging.fedavg import FedAvg
from strategies.fedhdp.fedhdp import FedHDP
from strategies.averaging.global_model import GlobalModel
from strategies.multi_model.ifca import IFCA
from strategies.multi_model.late_clusters import LateClusters
from strategies.fedhdp.level_averaging import Leveled
from strategies.multi_model.local_training import LocalTraining
from strategies.multi_model.base import ManyModels
from strategies.averaging.maximum import Maximum
from strategies.averaging.minimum import Minimum
from strategies.multi_model.mr_mtl import MRMTL
from strategies.noise_aware.oracle import Oracle
from strategies.multi_model.oracle_clusters import OracleClusters
from strategies.projection.pfa import PFA, PublicSubspace
from strategies.projection.pfa_plus import PFAPlus
from strategies.projection.base import Projected
from strategies.projection.public_only import PublicOnly
from strategies.multi_model.r_dpcfl import RDPCFL
from strategies.projection.random_projection import RandomProjection, RandomSubspace
from strategies.noise_aware.robust_hdp import RobustHDP
from strategies.noise_aware.robust_hdp_drift import RobustHDPDrift
from strategies.noise_aware.snr import SNR
from strategies.averaging.weiavg import WeiAvg

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
    "r-dpcfl": RDPCFL,
    "late-clusters": LateClusters,
    "ifca": IFCA,
    "oracle-clusters": OracleClusters,
    "global": GlobalModel,
    "local": LocalTraining,
    "mr-mtl": MRMTL,
    "ditto": Ditto,
}
"""Every rule by the name that users write in ``strategy``."""

PROJECTIONS: dict[str, type[Projected]] = {
    "pfa": PublicSubspace,
    "random": RandomSubspace,
}
"""What may follow the name of a rule that does not project, after a ``+``."""

CLUSTERED: dict[str, type[ManyModels]] = {
    "r-dpcfl": RDPCFL,
    "late-clusters": LateClusters,
    "ifca": IFCA,
    "oracle-clusters": OracleClusters,
}
"""What may follow the name of a rule with one model: its weights within each cluster."""


def check_strategy(name: str) -> type[HDPStrategy]:
    """Return the rule of that name, or a rule's weights with a part that goes with any.

    ``robust-hdp+pfa`` is Robust-HDP's weights with a projection, ``robust-hdp+r-dpcfl`` its weights
    within clusters.

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
    parts = {**PROJECTIONS, **CLUSTERED}
    if projection not in parts:
        raise StrategyError(
            f"'strategy': '{name}': after '+' comes a projection or a clustering: "
            f"{', '.join(parts)}"
        )
    if issubclass(STRATEGIES[rule], Projected):
        raise StrategyError(f"'strategy': '{name}': '{rule}' projects by itself")
    if issubclass(STRATEGIES[rule], ManyModels):
        raise StrategyError(f"'strategy': '{name}': '{rule}' has several models by itself")
    if projection in CLUSTERED and issubclass(STRATEGIES[rule], Leveled):
        raise StrategyError(f"'strategy': '{name}': '{rule}' is more than weights of updates")
    return _composed(rule, projection)


@cache
def _composed(rule: str, projection: str) -> type[HDPStrategy]:
    parts = {"name": f"{rule}+{projection}", "weighting": STRATEGIES[rule]}
    base: type[HDPStrategy] = {**PROJECTIONS, **CLUSTERED}[projection]
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
    if terms.selections and not getattr(rule, "chooses", False):
        raise StrategyError(
            f"'selections': '{terms.strategy}' asks for no choices, and sites would pay for them; "
            "leave it out, or take r-dpcfl or ifca"
        )
    return rule(terms)
