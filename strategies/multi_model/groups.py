"""Groups of clients with a model each: state, weights, checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.clustering.clusters import LABEL_SKEW, UNCHECKED, Clusters
from hdpfl_flower.config.settings import Count, Settings
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.updates import RoundUpdates

Groups = npt.NDArray[np.int64]
Gauges = Mapping[str, float | npt.NDArray[np.float64]]

UNKNOWN = -1
"""The group of a client that has none yet."""


class ClusterSettings(Settings):
    """How many clusters there are."""

    clusters: Count = Field(
        0,
        description="Number of models M. 0 means that it is found from how far the clusters "
        "separate.",
    )


@dataclass(frozen=True)
class MultiModelState:
    """The state of a strategy with several models.

    Attributes:
        models: M, the number of models; 0 before the end of round 1.
        groups: client → the number of its model, in the order in which clients got one.
        weighting: the state of the strategy that weighs within a group.
    """

    models: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    weighting: Any = None

    def group_of(self, client: str) -> int:
        """Return the client's group; ``UNKNOWN`` before it has one."""
        return self.groups.get(client, UNKNOWN)

    @property
    def largest_group(self) -> int:
        """The group of the most clients, the first of equals."""
        groups = list(self.groups.values())
        return int(np.argmax(np.bincount(groups))) if groups else 0


@dataclass(frozen=True)
class Assignment:
    """The clients of a round in groups.

    Attributes:
        group: the model that each client's update is added to, shape ``(n,)``.
        models: M.
        gauges: for the journal, each a float or of shape ``(n,)``.
    """

    group: Groups
    models: int
    gauges: Gauges = field(default_factory=dict)


def weights_within(weights: npt.NDArray[np.float64], group: Groups) -> npt.NDArray[np.float64]:
    """Normalise the weights in every group; equal weights if their sum is 0.

    >>> weights_within(np.array([0.1, 0.3, 0.6, 0.0]), np.array([0, 0, 1, 2]))
    array([0.25, 0.75, 1.  , 1.  ])
    """
    # The sum of each client's own group, shape (n,).
    totals = np.bincount(group, weights)[group]
    equal = 1 / np.bincount(group)[group]
    normalised: npt.NDArray[np.float64] = np.where(
        totals > 0, weights / np.where(totals > 0, totals, 1), equal
    )
    return normalised


def is_trusted(clusters: Clusters, settings: ClusterSettings) -> bool:
    """Return whether clients may be separated by these clusters.

    Where labels could not be tested, the operator's statement that there are groups is needed.
    """
    return clusters.separated and (clusters.claim != UNCHECKED or settings.clusters > 0)


def claim_gauges(clusters: Clusters, trusted: bool) -> dict[str, float | npt.NDArray[np.float64]]:
    """Return clusters for the journal: ``clusters_label_skew`` is NaN where not tested."""
    skew = math.nan if clusters.claim == UNCHECKED else float(clusters.claim == LABEL_SKEW)
    return {
        "clusters_mss": clusters.mss,
        "clusters_mpo": clusters.mpo,
        "clusters_separated": float(trusted),
        "clusters_label_skew": skew,
    }


def check_clusters(settings: ClusterSettings, table: str, sites: int) -> None:
    """Refuse a number of clusters that is not positive or exceeds ``sites``.

    Args:
        settings: the strategy's.
        table: the name before the dot of their keys.
        sites: the number of sites that take part.

    Raises:
        StrategyError: names the key.
    """
    key, clusters = f"{table}.clusters", settings.clusters
    if clusters == 1 or clusters > sites:
        raise StrategyError(
            f"'{key}' = {clusters}, and {sites} sites take part; ask for 2 to {sites}, for 0 to "
            "find them, or take 'fedavg' for one model"
        )


def trained_groups(updates: RoundUpdates) -> Groups:
    """Return the model of each update; raises ``StrategyError`` where there is none."""
    if updates.group is None:
        raise StrategyError("an update belongs to no model")
    return updates.group
