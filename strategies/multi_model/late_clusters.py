"""Late clusters: one model, which splits once the clients' summed updates separate.

Ours. R-DPCFL (Malekmohammadi, Taik and Farnadi, TMLR 2025) finds clusters in exact first updates,
from all of a site's records at once, and lets sites choose privately later; both are paid for with
noise in all other rounds, and with few records the first updates show nothing. Here the sites train
one model by ordinary rounds. A group's own move beyond the common model is much the same in each
round and adds up, while noise grows with the root: after T rounds a site's sum shows √T times as
much as an update. The server sums the updates up, which costs no privacy, and looks after 1, 2, 3,
4, 6, 8, 12, … rounds, two looks a doubling (``hdpfl_flower/clustering/by_direction.py``: by
direction, since a site of many batches goes farther). The sites part when

* the clusters separate (``Clusters.separated``), and neither the labels' proportions nor one
  cluster explain them as well (``hdpfl_flower/clustering/claims.py``); without a known softmax head
  labels cannot be tested, and the sites part only where ``clusters`` states how many there are,
* at most ``MISPLACED`` sites are expected in a wrong one, and
* the looks back to half as many rounds had the same clusters: two groups that look like one part
  when the evidence doubles.

Noise may hide a site for good. So that it holds no site up, half of the sites are enough if each is
``SURE`` of its cluster, and they were in the same ones back to a quarter of the rounds; the others
go where they most likely belong.

Each cluster's model starts from the common one plus its sites' moves beyond it: to first order the
model that the cluster would have reached alone. Where the clusters never separate this is FedAvg.

Sattler, Müller and Samek (Clustered Federated Learning, IEEE TNNLS 2021) part clients at a
stationary point of the common model, for the same reason; without noise, and by cosines.

Threat model: an untrusted server; each site's noise protects its records, with its own ε, δ, batch
size and records. No choices, no first batch. No site discloses anything.

Known limits: until the sites part they have one model, which is a poor one where groups contradict
each other; where noise keeps them together for good, ``local`` is better. Clusters stay as they
are, and a site that joins after the sites part trains the largest one's model: take R-DPCFL where
sites join late. Until they part the server keeps a sum the size of a model for each, in
checkpoints, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hdpfl_flower.clustering.by_direction import cluster_by_direction
from hdpfl_flower.clustering.claims import judged
from hdpfl_flower.clustering.clusters import LABEL_SKEW, Clusters
from hdpfl_flower.clustering.noise_mixture import noise_of
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.linalg.types import Vector
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.core.base import table_of
from strategies.core.interface import Disclosed
from strategies.core.roster import site_order
from strategies.multi_model.base import MultiModel
from strategies.multi_model.groups import (
    UNKNOWN,
    Assignment,
    ClusterSettings,
    MultiModelState,
    check_clusters,
    claim_gauges,
    is_trusted,
)

log = logging.getLogger("hdpfl.server")

Floats = npt.NDArray[np.float32]

MISPLACED = 0.05
"""Greatest expected number of misplaced clients at which the model is split."""
SURE = 0.99
"""Probability of a cluster from which a client counts as placed, where others cannot be."""
_LOOKS = 4
"""Looks of which each client's cluster is kept."""


@dataclass(frozen=True)
class ClientSum:
    """Sums over the updates of one client.

    Attributes:
        rounds: in which its update was used.
        beyond: the sum of its updates less the model's steps, shape ``(d,)``.
        seen: its clusters in the last four looks, the last one first; ``UNKNOWN`` before them.
    """

    rounds: int
    beyond: npt.NDArray[np.float64]
    seen: tuple[int, ...] = (UNKNOWN,) * _LOOKS


@dataclass(frozen=True)
class CommonModel:
    """Sums over all clients while they train one model.

    Attributes:
        rounds: so far.
        moved: the sum of the model's steps, shape ``(d,)``; None before the first.
        clients: by name, of those with a used update.
    """

    rounds: int = 0
    moved: npt.NDArray[np.float64] | None = None
    clients: dict[str, ClientSum] = field(default_factory=dict)

    def plus(self, updates: RoundUpdates, step: Floats) -> CommonModel:
        """Return the sums with a round of the common model added."""
        zeros, clients = np.zeros(updates.updates.shape[1]), dict(self.clients)
        for client, update in zip(updates.sites, updates.updates, strict=True):
            before = clients.get(client, ClientSum(0, zeros))
            # float64: small differences of float32 vectors add up over all rounds.
            beyond = np.subtract(update, step, dtype=np.float64)
            clients[client] = replace(
                before, rounds=before.rounds + 1, beyond=before.beyond + beyond
            )
        moved = zeros if self.moved is None else self.moved
        return CommonModel(self.rounds + 1, moved + step, clients)

    def with_look(self, label: Mapping[str, int]) -> CommonModel:
        """Return the sums with the clusters of one more look."""
        clients = {
            name: replace(client, seen=(label[name], *client.seen[:-1]))
            if name in label
            else client
            for name, client in self.clients.items()
        }
        return replace(self, clients=clients)

    def sums(self) -> tuple[list[str], Floats]:
        """Return the clients in order with their summed updates, shape ``(n, d)``.

        Of a client that missed rounds: the model's steps, and as much beyond them as if it had
        taken part in all rounds as it did in its own. One that never moved shows nothing and is
        left out.
        """
        names, rows, moved = [], [], 0.0 if self.moved is None else self.moved
        for name in sorted(self.clients, key=site_order):
            client = self.clients[name]
            # Σ steps + (T/tᵢ)·Σ (uᵢ − step), with tᵢ of the T rounds its own.
            row = (moved + client.beyond * (self.rounds / float(client.rounds))).astype(np.float32)
            if row.any():
                names.append(name)
                rows.append(row)
        return names, np.stack(rows) if rows else np.zeros((0, 0), np.float32)


@dataclass(frozen=True)
class LateClustersState(MultiModelState):
    """The state of late clusters.

    Attributes:
        common: the sums until the clients part; None from then on.
    """

    common: CommonModel | None = field(default_factory=CommonModel)


class LateClusters(MultiModel):
    """Train one model, then one per cluster once the clusters are certain."""

    name = "late-clusters"
    settings_type = ClusterSettings
    settings: ClusterSettings

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms; raises ``StrategyError`` for clusters that cannot be."""
        check_clusters(self.settings, table_of(type(self)), len(disclosed))
        return super().propose(terms, disclosed)

    def initial_state(self, disclosed: Disclosed | None = None) -> LateClustersState:
        """Return one common model and empty sums."""
        return LateClustersState(weighting=self.weights.initial_state(disclosed))

    def is_common(self, state: LateClustersState) -> bool:
        """Return whether the clients have not parted."""
        return state.common is not None

    def initial_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return one group."""
        return state, Assignment(np.zeros(len(updates.sites), np.int64), 1)

    def update_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return the groups, or after certain rounds the clusters of the sums.

        The journal has of each look ``clusters_mss``, ``clusters_mpo``, ``clusters_separated``,
        whether the clients part, and ``clusters_label_skew``; of the last also each client's
        ``cluster_confidence``.
        """
        common: CommonModel | None = state.common
        if common is None or not looks_after(common.rounds):
            return super().update_groups(state, updates)
        names, sums = common.sums()
        try:
            variances = noise_of(sums, None)
            clusters = cluster_by_direction(sums, self.settings.clusters, variances)
        except StrategyError as reason:
            log.info("after round %d: no clusters: %s", common.rounds, reason)
            return super().update_groups(state, updates)
        clusters = self._claimed(clusters, sums, variances, updates.head)
        label = dict(zip(names, clusters.assignment.tolist(), strict=True))
        parts = is_trusted(clusters, self.settings) and _is_certain(clusters, common, label)
        _log(clusters, common.rounds, parts)
        gauges = claim_gauges(clusters, parts)
        if not parts:
            group = np.zeros(len(updates.sites), np.int64)
            return replace(state, common=common.with_look(label)), Assignment(group, 1, gauges)
        sure = dict(zip(names, clusters.confidence.tolist(), strict=True))
        gauges["cluster_confidence"] = np.array([sure.get(site, 0.0) for site in updates.sites])
        largest = int(np.argmax(clusters.sizes))
        group = np.array([label.get(site, largest) for site in updates.sites], dtype=np.int64)
        placed = dict.fromkeys(common.clients, largest) | label
        state = replace(state, groups={**state.groups, **placed})
        return state, Assignment(group, len(clusters.sizes), gauges)

    def combine(
        self, state: LateClustersState, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[LateClustersState, Outcome]:
        """Return the weighted means; add to the sums; start models after a split."""
        after, outcome = super().combine(state, updates, noise)
        if after.common is None:
            return after, outcome
        if after.models <= 1:
            return replace(after, common=after.common.plus(updates, outcome.update[0])), outcome
        # The round in which the clients part: each model's step also has its clients' moves beyond
        # the common model so far. The sums end here.
        lead = _lead(after, updates, outcome)
        return replace(after, common=None), replace(outcome, update=outcome.update + lead)

    def _claimed(
        self, clusters: Clusters, sums: Floats, variances: Vector, head: Head | None
    ) -> Clusters:
        """Return the clusters and their claim; one cluster if labels explain them.

        For a look decides once and for all, and the next one is surer.
        """
        claimed = judged(clusters, sums, variances, head, by_direction=True)
        whole = len(claimed.sizes) == len(clusters.sizes)
        return claimed if whole else replace(clusters, claim=LABEL_SKEW)


def looks_after(rounds: int) -> bool:
    """Return whether sums of so many rounds are clustered: twice a doubling.

    >>> [rounds for rounds in range(50) if looks_after(rounds)]
    [1, 2, 3, 4, 6, 8, 12, 16, 23, 32, 46]
    """
    return rounds > 0 and rounds == math.ceil(2 ** (round(2 * math.log2(rounds)) / 2))


def _lead(state: LateClustersState, updates: RoundUpdates, outcome: Outcome) -> Floats:
    """Return each cluster's distance beyond the common model, shape ``(M, d)``."""
    clients = state.common.clients if state.common else {}
    leads = np.zeros(outcome.update.shape)
    for client, weight in zip(updates.sites, outcome.weights, strict=True):
        if client in clients:
            # Weights sum to 1 within a group, so this is the group's mean.
            leads[state.group_of(client)] += weight * clients[client].beyond
    return leads.astype(np.float32)


def _is_certain(clusters: Clusters, common: CommonModel, label: Mapping[str, int]) -> bool:
    """Return whether the clients may part by these clusters."""
    sure = [site for site, p in zip(label, clusters.confidence, strict=True) if p >= SURE]
    # Two looks a doubling: two looks reach back to half of the rounds, four to a quarter.
    everyone = clusters.misplaced <= MISPLACED and _agrees(common, label, list(label), looks=2)
    return everyone or (2 * len(sure) >= len(label) and _agrees(common, label, sure, looks=_LOOKS))


def _agrees(common: CommonModel, label: Mapping[str, int], clients: list[str], looks: int) -> bool:
    """Return whether the last looks found the same clusters."""
    for look in range(looks):
        both = [name for name in clients if common.clients[name].seen[look] != UNKNOWN]
        now = np.array([label[name] for name in both])
        then = np.array([common.clients[name].seen[look] for name in both])
        # Partitions, not numbers: another look may number the same clusters otherwise.
        if not both or not np.array_equal(now[:, None] == now, then[:, None] == then):
            return False
    return True


def _log(clusters: Clusters, rounds: int, parts: bool) -> None:
    sizes = "/".join(map(str, clusters.sizes))
    log.info(
        "after round %d: %s, of %s sites, least separation %.2f; the claim: %s",
        rounds,
        "a model a cluster from here on" if parts else "clusters not certain yet",
        sizes,
        clusters.mss,
        clusters.claim,
    )
