"""Table of all strategies, and of the parts that combine with them."""

from __future__ import annotations

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from strategies.averaging.ditto import Ditto
from strategies.averaging.fedavg import FedAvg, GlobalModel
from strategies.averaging.maximum import Maximum
from strategies.averaging.minimum import Minimum
from strategies.averaging.trimmed_mean import TrimmedMean
from strategies.averaging.weiavg import WeiAvg
from strategies.composition import Combination, check_keys, compose, with_rate
from strategies.core.base import HDPStrategy
from strategies.external import is_external, load_strategy
from strategies.fedhdp.dp_fedavg import DPFedAvg, NonPrivate
from strategies.fedhdp.fedhdp import FedHDP
from strategies.fedhdp.level_averaging import LevelAveraging
from strategies.multi_model.base import MultiModel
from strategies.multi_model.ifca import IFCA
from strategies.multi_model.late_clusters import LateClusters
from strategies.multi_model.local_training import LocalTraining
from strategies.multi_model.mr_mtl import MRMTL
from strategies.multi_model.oracle_clusters import OracleClusters
from strategies.multi_model.pmtl import PMTL
from strategies.multi_model.r_dpcfl import RDPCFL
from strategies.noise_aware.mmse import MMSE
from strategies.noise_aware.oracle import Oracle
from strategies.noise_aware.robust_hdp import RobustHDP
from strategies.personal.dp_fedavg_fb import DPFedAvgFB
from strategies.personal.dsu import DSU, DSUPublished
from strategies.personal.fedbabu import FedBABU
from strategies.personal.fedper import FedPer
from strategies.personal.fedrep import FedRep
from strategies.personal.ppsgd import PPSGD
from strategies.projection.base import Projected
from strategies.projection.pfa import PFA
from strategies.projection.pfa_plus import PFAPlus
from strategies.projection.public_only import PublicOnly
from strategies.projection.random_projection import RandomProjection
from strategies.server_step.adaptive import Adam, Yogi
from strategies.server_step.anderson import Anderson
from strategies.server_step.momentum import ServerMomentum
from strategies.server_step.step import ServerStep, table_of
from strategies.settings import Owner, check_settings
from strategies.splitting.base import Splitting
from strategies.splitting.fedpi import FedPi
from strategies.splitting.fedprox import FedProx
from strategies.splitting.fedrp import FedRP
from strategies.splitting.fedsplit import FedSplit
from strategies.splitting.own_scheme import OwnScheme
from strategies.splitting.own_starts import OwnStarts
from strategies.splitting.scaffold import Scaffold

STRATEGIES: dict[str, type[HDPStrategy]] = {
    "fedavg": FedAvg,
    "trimmed-mean": TrimmedMean,
    "minimum": Minimum,
    "maximum": Maximum,
    "weiavg": WeiAvg,
    "public-only": PublicOnly,
    "pfa": PFA,
    "pfa-plus": PFAPlus,
    "random-projection": RandomProjection,
    "robust-hdp": RobustHDP,
    "mmse": MMSE,
    "scaffold": Scaffold,
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
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "ppsgd": PPSGD,
    "pmtl": PMTL,
    "dp-fedavg-fb": DPFedAvgFB,
    "dsu": DSU,
    "dsu-published": DSUPublished,
    "fedprox": FedProx,
    "fedrp": FedRP,
    "fedsplit": FedSplit,
    "fedpi": FedPi,
    "splitting": OwnScheme,
}
"""Every strategy by the name that users write in ``strategy``."""

PROJECTIONS: dict[str, type[Projected]] = {
    "pfa": PFA,
    "random": RandomProjection,
}
"""Projections after a ``+``, for strategies that do not project."""

CLUSTERED: dict[str, type[MultiModel]] = {
    "r-dpcfl": RDPCFL,
    "late-clusters": LateClusters,
    "ifca": IFCA,
    "oracle-clusters": OracleClusters,
}
"""Clusterings after a ``+``, for strategies with one model: weights within clusters."""

SPLITTINGS: dict[str, type[Splitting | OwnStarts]] = {
    "fedprox": FedProx,
    "fedrp": FedRP,
    "fedsplit": FedSplit,
    "fedpi": FedPi,
    "splitting": OwnScheme,
}
"""Operator splittings after a ``+``, for strategies with one model."""

CONTROL_VARIATES: dict[str, type[Scaffold]] = {
    "scaffold": Scaffold,
}
"""Control variates after a ``+``, for strategies with one model."""

SERVER_STEPS: dict[str, type[ServerStep]] = {
    "momentum": ServerMomentum,
    "adam": Adam,
    "yogi": Yogi,
    "anderson": Anderson,
}
"""Server steps after a ``+``, for strategies with one model."""

PARTS = (PROJECTIONS, CLUSTERED, SPLITTINGS, CONTROL_VARIATES, SERVER_STEPS)
"""Tables of all parts after a ``+``."""

_OWNERS: dict[str, Owner] = {**STRATEGIES, **SERVER_STEPS}
SETTINGS_OWNERS = {name: owner for name, owner in _OWNERS.items() if table_of(owner) == name}
"""Owners of settings, by the name before the dot of their keys: the first of a family."""


def check_strategy(name: str) -> type[HDPStrategy]:
    """Return the strategy of that name, with its parts.

    ``robust-hdp+pfa`` is Robust-HDP's weights with a projection, ``robust-hdp+r-dpcfl`` its weights
    within clusters, ``robust-hdp+fedprox`` its weights of proximal maps, ``robust-hdp+momentum``
    its weights with a server step.
    ``my_strategies:TrimmedMean`` is a class of one's own (``external.py``).

    Raises:
        StrategyError: there is none, and the known ones are listed; or its parts do not go
            together (``composition.py``).
    """
    weighting, *parts = name.split("+")
    weights = _strategy_of(weighting, name)
    if not parts:
        return weights
    around = {**PROJECTIONS, **CLUSTERED, **SPLITTINGS, **CONTROL_VARIATES}
    for part in parts:
        if part not in around and part not in SERVER_STEPS:
            raise StrategyError(
                f"'strategy': '{name}': after '+' write a projection, a clustering or a "
                f"splitting: {', '.join(around)}; or a server step: {', '.join(SERVER_STEPS)}"
            )
    return compose(
        Combination(
            name,
            weights,
            tuple(around[part] for part in parts if part in around),
            tuple(SERVER_STEPS[part] for part in parts if part in SERVER_STEPS),
        )
    )


def _strategy_of(name: str, whole: str) -> type[HDPStrategy]:
    if is_external(name):
        return load_strategy(name)
    if name not in STRATEGIES:
        raise StrategyError(
            f"'strategy': '{whole}' is not known; choose one of {', '.join(STRATEGIES)}, or write "
            "module:Class for one of your own"
        )
    return STRATEGIES[name]


def make_strategy(config: RunConfig) -> HDPStrategy:
    """Return the strategy that ``strategy`` names.

    Raises:
        StrategyError: as :func:`check_strategy` does; or ``noise = server`` with a strategy that
            adds none: sites' updates would go into the model as they are.
    """
    terms = config.terms
    strategy = check_strategy(terms.strategy)
    check_settings(config, SETTINGS_OWNERS, running=[strategy])
    config = with_rate(strategy, config)
    check_keys(strategy, config)
    if terms.noise == "server" and not issubclass(strategy, LevelAveraging):
        raise StrategyError(
            f"'noise' = 'server': '{terms.strategy}' adds no noise; take fedhdp or dp-fedavg, or "
            "leave the noise to the sites"
        )
    if terms.choices and strategy.choice is None:
        raise StrategyError(
            f"'choice': '{terms.strategy}' asks for no choices, and sites would pay for them; "
            "leave it out, or take r-dpcfl or ifca"
        )
    return strategy(config)
