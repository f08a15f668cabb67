"""Sites in groups: what a rule with several models says of a round, and what it remembers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord

from hdpfl_flower import wire
from hdpfl_flower.clustering.clusters import LABEL_SKEW, UNCHECKED, Clusters
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from strategies.core.rule import State

Groups = npt.NDArray[np.int64]
Gauges = Mapping[str, float | npt.NDArray[np.float64]]

UNKNOWN = -1
"""The group of a site that has none yet."""
OWN = "clusters/"
"""What the names of this part of a state begin with; the rest is the weighing rule's."""
MODELS, GROUP = f"{OWN}models", f"{OWN}group/"


@dataclass(frozen=True)
class Ask:
    """What a site is sent.

    Attributes:
        model: the number of the model to train.
        use: ``wire.CHOOSE``: all models, to choose one; ``wire.PULL``: also the mean of all models,
            to be pulled to; empty: that model alone.
    """

    model: int
    use: str = ""


@dataclass(frozen=True)
class Grouped:
    """The sites of a round in groups.

    Attributes:
        group: the model that each site's update goes into, shape ``(n,)``.
        models: M.
        state: what to remember beside each site's group.
        gauges: for the journal, each a float or of shape ``(n,)``.
    """

    group: Groups
    models: int
    state: State = field(default_factory=dict)
    gauges: Gauges = field(default_factory=dict)


def models_of(state: State) -> int:
    """Return the number of models; 0 before the first round."""
    return int(state[MODELS][0]) if MODELS in state else 0


def group_of(state: State, site: str) -> int:
    """Return the group of a site, ``UNKNOWN`` while it has none."""
    return int(state[GROUP + site][0]) if GROUP + site in state else UNKNOWN


def largest_group(state: State) -> int:
    """Return the group of the most sites, the first of equals."""
    groups = [int(values[0]) for name, values in state.items() if name.startswith(GROUP)]
    return int(np.argmax(np.bincount(groups))) if groups else 0


def weights_within(weights: npt.NDArray[np.float64], group: Groups) -> npt.NDArray[np.float64]:
    """Return the weights made to sum to 1 in every group; equal where a group's sum to 0.

    >>> weights_within(np.array([0.1, 0.3, 0.6, 0.0]), np.array([0, 0, 1, 2]))
    array([0.25, 0.75, 1.  , 1.  ])
    """
    totals = np.bincount(group, weights)[group]
    equal = 1 / np.bincount(group)[group]
    found: npt.NDArray[np.float64] = np.where(
        totals > 0, weights / np.where(totals > 0, totals, 1), equal
    )
    return found


def is_trusted(found: Clusters, terms: RunTerms) -> bool:
    """Tell whether sites may part by these clusters.

    Where labels could not be looked at, the operator's word that there are groups is needed.
    """
    return found.separated and (found.claim != UNCHECKED or terms.clusters > 0)


def claim_gauges(found: Clusters, trusted: bool) -> dict[str, float | npt.NDArray[np.float64]]:
    """Return what the journal has of clusters: ``clusters_label_skew`` is NaN if not looked at."""
    skew = math.nan if found.claim == UNCHECKED else float(found.claim == LABEL_SKEW)
    return {
        "clusters_mss": found.mss,
        "clusters_mpo": found.mpo,
        "clusters_separated": float(trusted),
        "clusters_label_skew": skew,
    }


def mean_model(models: tuple[ArrayRecord, ...]) -> ArrayRecord:
    """Return the mean of the models, summed in float64."""
    total = {name: array.astype(np.float64) for name, array in wire.read_own(models[0]).items()}
    for model in models[1:]:
        for name, array in wire.read_own(model).items():
            total[name] += array
    return wire.write_model(
        {name: (array / len(models)).astype(np.float32) for name, array in total.items()}
    )


def check_clusters(terms: RunTerms, sites: int) -> None:
    """Refuse a number of clusters that ``sites`` sites cannot have, or that is none.

    Raises:
        StrategyError: names the key.
    """
    if terms.clusters == 1:
        raise StrategyError("'clusters' = 1 is 'fedavg'; ask for 2 or more, or 0 to find them")
    if terms.clusters > sites:
        raise StrategyError(
            f"'clusters' = {terms.clusters}, and {sites} sites take part; ask for fewer, or start "
            "more sites"
        )


def check_terms(terms: RunTerms) -> None:
    """Refuse terms that go with one model alone.

    Raises:
        StrategyError: names the key.
    """
    wrong = {
        "noise": (terms.noise != "records", "each site noises its own steps: leave 'noise' out"),
        "guard": (terms.guard != "none", "a guard compares updates of one model: leave it out"),
        "personal-lambda": (bool(terms.personal_lambda), "a personal model is pulled to one global "
                            "model: take 'ditto'"),
    }  # fmt: skip
    for key, (is_wrong, remedy) in wrong.items():
        if is_wrong:
            raise StrategyError(f"'{key}' does not go with '{terms.strategy}': {remedy}")
