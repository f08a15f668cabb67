"""Table of all strategies, and of the parts that combine with them."""

from __future__ import annotations

from collections.abc import Iterator

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.errors import StrategyError
from strategies.averaging.ditto import Ditto
from strategies.averaging.fedavg import FedAvg, GlobalModel
from strategies.averaging.maximum import Maximum
from strategies.averaging.minimum import Minimum
from strategies.averaging.trimmed_mean import TrimmedMean
from strategies.averaging.weiavg import WeiAvg
from strategies.composition import Combination, Owner
from strategies.core.base import HDPStrategy
from strategies.core.declaration import BARE, KEYS, Needs
from strategies.core.kernel import Kernel
from strategies.external import is_external, load_strategy
from strategies.fedhdp.dp_fedavg import DPFedAvg, NonPrivate
from strategies.fedhdp.fedhdp import FedHDP
from strategies.guards.registry import GUARDS
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
from strategies.server_step.found import FoundRate
from strategies.server_step.momentum import ServerMomentum
from strategies.server_step.step import ServerStep, table_of
from strategies.settings import check_settings
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

_AROUND = {**PROJECTIONS, **CLUSTERED, **SPLITTINGS, **CONTROL_VARIATES}
PARTS = (PROJECTIONS, CLUSTERED, SPLITTINGS, CONTROL_VARIATES, SERVER_STEPS)
"""Tables of all parts after a ``+``."""

_OWNERS: dict[str, Owner] = {**STRATEGIES, **SERVER_STEPS}
SETTINGS_OWNERS = {name: owner for name, owner in _OWNERS.items() if table_of(owner) == name}
"""Owners of settings, by the name before the dot of their keys: the first of a family."""


def options() -> Iterator[tuple[str, Needs]]:
    """Yield every option of a run that needs properties of a strategy."""
    for name, part in _AROUND.items():
        yield f"+{name}", {**BARE, **part.needs_of_weights}
    for name, step in SERVER_STEPS.items():
        yield f"+{name}", step.needs
    yield "'server-learning-rate' = 'found'", FoundRate.needs
    for name, guard in GUARDS.items():
        yield f"'guard' = '{name}'", guard.needs
    yield from ((key.key, key.needs) for key in KEYS)


def check_strategy(name: str) -> Combination:
    """Return the strategy of that name, with its parts.

    ``robust-hdp+pfa`` is Robust-HDP's weights with a projection, ``robust-hdp+r-dpcfl`` its weights
    within clusters, ``robust-hdp+fedprox`` its weights of proximal maps, ``robust-hdp+momentum``
    its weights with a server step.
    ``my_strategies:TrimmedMean`` is a class of one's own (``external.py``).

    Raises:
        StrategyError: there is none, and the known ones are listed.
        TermsError: its parts do not go together.
    """
    weighting, *after = name.split("+")
    weights = _strategy_of(weighting, name)
    parts = tuple(_AROUND[part] for part in after if part in _AROUND)
    steps = [SERVER_STEPS[part] for part in after if part in SERVER_STEPS]
    if len(parts) + len(steps) < len(after) or len(steps) > 1:
        raise StrategyError(
            f"'strategy': '{name}': after '+' write a projection, a clustering or a splitting: "
            f"{', '.join(_AROUND)}; or write one server step: {', '.join(SERVER_STEPS)}"
        )
    combination = Combination(weights.name if not after else name, weights, parts, *steps)
    if after:
        Kernel(combination.build(RunConfig()), combination.step)
    return combination


def _strategy_of(name: str, whole: str) -> type[HDPStrategy]:
    if is_external(name):
        return load_strategy(name)
    if name not in STRATEGIES:
        raise StrategyError(
            f"'strategy': '{whole}' is not known; choose one of {', '.join(STRATEGIES)}, or "
            "write module:Class for your own strategy"
        )
    return STRATEGIES[name]


def make_strategy(config: RunConfig) -> HDPStrategy:
    """Return the strategy that ``strategy`` names; errors as :func:`make_kernel`."""
    return make_kernel(config).strategy


def make_kernel(config: RunConfig) -> Kernel:
    """Return the rounds of the strategy that ``strategy`` names, as Flower's Strategy.

    Raises:
        StrategyError: as :func:`check_strategy` does.
        TermsError: a setting is wrong, or a key needs a property that the strategy does not offer.
    """
    combination = check_strategy(config.terms.strategy)
    check_settings(config, SETTINGS_OWNERS, running=[combination])
    return Kernel(combination.build(combination.with_rate(config)), combination.step)
