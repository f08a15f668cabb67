"""Late clusters: one common model until the sums of its updates separate; a model a cluster then.

Ours. R-DPCFL (Malekmohammadi, Taik and Farnadi, TMLR 2025) finds clusters in exact first updates,
from all of a site's records at once, and lets sites choose privately later; both are paid for with
noise in all other rounds, and with few records the first updates show nothing. Here the sites train
one model by ordinary rounds. What a group would do beyond the common model is much the same in each
round and adds up, while noise grows with the root: after T rounds a site's sum shows √T times as
much as an update. The server sums the updates up, which costs no privacy, and looks after 1, 2, 3,
4, 6, 8, 12, … rounds, two looks a doubling (``hdpfl_flower/clustering/by_direction.py``: by direction, since a
site of many batches goes farther). The sites part when

* the clusters separate (``Clusters.separated``), and neither the labels' proportions nor one
  cluster explain them as well (``hdpfl_flower/claims.py``); in a network whose head is not known,
  labels cannot be looked at, and the sites part only where the terms say how many clusters,
* at most ``MISPLACED`` sites are expected in a wrong one, and
* the looks back to half as many rounds had the same clusters: two groups that look like one part
  when the evidence doubles.

Noise may hide a site for good. So that it holds nobody up, half of the sites are enough if each is
``SURE`` of its cluster, and they were in the same ones back to a quarter of the rounds; the others
go where they most likely belong.

Each cluster's model starts from the common one and what its sites' updates went beyond it, which is
to first order what the cluster would have reached alone. Where the clusters never separate this is
FedAvg.

Sattler, Müller and Samek (Clustered Federated Learning, IEEE TNNLS 2021) part clients at a
stationary point of the common model, for the same reason; without noise, and by cosines.

Threat model: an untrusted server; each site's noise protects its records, with its own ε, δ, batch
size and records. No choices, no first batch. No site discloses anything.

Known limits: until the sites part they have one model, which is a poor one where groups contradict
each other; where noise keeps them together for good, ``local`` is better. Clusters stay as they
are, and a site first heard after the sites part trains the largest one's model: take R-DPCFL where
sites join late. Until they part the server keeps a sum the size of a model for each, in
checkpoints, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.claims import judged
from hdpfl_flower.clustering.clusters import LABEL_SKEW, Clusters, Vector
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.clustering.by_direction import cluster_by_direction
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.clustering.noise_mixture import noise_of
from hdpfl_flower.privacy.noise import RandomStream
from hdpfl_flower.updates import Outcome, RoundUpdates
from strategies.multi_model.groups import (
    GROUP,
    OWN,
    UNKNOWN,
    Grouped,
    check_clusters,
    claim_gauges,
    group_of,
    is_trusted,
    models_of,
)
from strategies.multi_model.base import ManyModels
from strategies.core.roster import site_order
from strategies.core.rule import Disclosed, State

log = logging.getLogger("hdpfl.server")

Floats = npt.NDArray[np.float32]

MISPLACED = 0.05
"""Sites expected in a wrong cluster, at most, for the sites to part."""
SURE = 0.99
"""Probability of a cluster from which on a site counts as placed, where others cannot be."""

_COMMON = f"{OWN}common/"
"""What is kept while all sites train one model, and dropped when they part."""
_ROUNDS, _MOVED = f"{_COMMON}rounds", f"{_COMMON}moved"
"""The rounds so far, and how far they moved the model, shape ``(d,)``."""
_BEYOND, _HEARD = f"{_COMMON}beyond/", f"{_COMMON}heard/"
"""Of a site: the sum of its updates less the model's moves, shape ``(d,)``; of how many rounds."""
_SEEN = f"{_COMMON}seen/"
"""Of a site: its clusters in the last four looks, the last one first, shape ``(4,)``."""


class LateClusters(ManyModels):
    """One model, and a model a cluster once the clusters are certain."""

    name = "late-clusters"

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """See :meth:`Rule.propose`; raises ``StrategyError`` for clusters that cannot be."""
        check_clusters(terms, len(self.roster.eligible()))
        return super().propose(terms, disclosed)

    def is_common(self, state: State) -> bool:
        """See :meth:`ManyModels.is_common`: one model counts."""
        return models_of(state) <= 1

    def begin(self, updates: RoundUpdates) -> Grouped:
        """See :meth:`ManyModels.begin`: one group."""
        return Grouped(np.zeros(len(updates.sites), np.int64), 1)

    def go_on(self, state: State, updates: RoundUpdates) -> Grouped:
        """See :meth:`ManyModels.go_on`; at times the sums are looked at.

        The journal has of each look ``clusters_mss``, ``clusters_mpo``, ``clusters_separated``,
        whether the sites part, and ``clusters_label_skew``; of the last also each site's
        ``cluster_confidence``.
        """
        rounds = int(state[_ROUNDS][0]) if self.is_common(state) else 0
        if not looks_after(rounds):
            return super().go_on(state, updates)
        sites, sums = _sums(state, rounds)
        try:
            variances = noise_of(sums, None)
            found = cluster_by_direction(sums, self.terms.clusters, variances)
        except StrategyError as reason:
            log.info("after round %d: no clusters: %s", rounds, reason)
            return super().go_on(state, updates)
        found = self._claimed(found, sums, variances, updates.head)
        label = dict(zip(sites, found.assignment.tolist(), strict=True))
        parts = is_trusted(found, self.terms) and _is_certain(found, state, label)
        _tell(found, rounds, parts)
        gauges = claim_gauges(found, parts)
        if not parts:
            seen = {
                f"{_SEEN}{site}": np.array([cluster, *_seen(state, site)[:-1]], dtype=np.float64)
                for site, cluster in label.items()
            }
            return Grouped(self.begin(updates).group, 1, _named(seen), gauges)
        sure = dict(zip(sites, found.confidence.tolist(), strict=True))
        gauges["cluster_confidence"] = np.array([sure.get(site, 0.0) for site in updates.sites])
        largest = int(np.argmax(found.sizes))
        group = np.array([label.get(site, largest) for site in updates.sites], dtype=np.int64)
        placed = dict.fromkeys(_heard(state), largest) | label
        known = {f"{GROUP}{site}": np.array([float(x)]) for site, x in placed.items()}
        return Grouped(group, len(found.sizes), _named(known), gauges)

    def _claimed(
        self, found: Clusters, sums: Floats, variances: Vector, head: Head | None
    ) -> Clusters:
        """Return the clusters with their claim; some that labels explain hold all together.

        For a look decides once and for all, and the next one knows more.
        """
        claimed = judged(found, sums, variances, head, by_direction=True)
        whole = len(claimed.sizes) == len(found.sizes)
        return claimed if whole else replace(found, claim=LABEL_SKEW)

    def combine(
        self, state: State, updates: RoundUpdates, noise: RandomStream
    ) -> tuple[State, Outcome]:
        """See :meth:`ManyModels.combine`; what the sites went beyond the model is kept."""
        after, outcome = super().combine(state, updates, noise)
        if not self.is_common(state):
            return after, outcome
        if self.is_common(after):
            return {**after, **_collected(state, updates, outcome.update[0])}, outcome
        kept = {name: array for name, array in after.items() if not name.startswith(_COMMON)}
        return kept, replace(outcome, update=outcome.update + _lead(state, after, updates, outcome))


def looks_after(rounds: int) -> bool:
    """Tell whether the sums of so many rounds are looked at: twice a doubling.

    >>> [rounds for rounds in range(50) if looks_after(rounds)]
    [1, 2, 3, 4, 6, 8, 12, 16, 23, 32, 46]
    """
    return rounds > 0 and rounds == math.ceil(2 ** (round(2 * math.log2(rounds)) / 2))


def _collected(state: State, updates: RoundUpdates, move: npt.NDArray[np.float32]) -> State:
    """Return the sums with a round of the common model added."""
    zeros = np.zeros(updates.updates.shape[1])
    found = {
        _ROUNDS: state.get(_ROUNDS, np.zeros(1)) + 1,
        _MOVED: state.get(_MOVED, zeros) + move,
    }
    for site, update in zip(updates.sites, updates.updates, strict=True):
        beyond = np.subtract(update, move, dtype=np.float64)
        found[_BEYOND + site] = state.get(_BEYOND + site, zeros) + beyond
        found[_HEARD + site] = state.get(_HEARD + site, np.zeros(1)) + 1
    return found


def _heard(state: State) -> list[str]:
    return [name.removeprefix(_HEARD) for name in state if name.startswith(_HEARD)]


def _sums(state: State, rounds: int) -> tuple[list[str], npt.NDArray[np.float32]]:
    """Return the sites in their order and each one's summed updates, float32, shape ``(n, d)``.

    Of a site that missed rounds: the model's moves, and as much beyond them as if it had gone on
    in all rounds as in those it was heard in. One that never moved shows nothing and is left out.
    """
    sites, rows = [], []
    for site in sorted(_heard(state), key=site_order):
        stretch = rounds / float(state[_HEARD + site][0])
        row = (state[_MOVED] + state[_BEYOND + site] * stretch).astype(np.float32)
        if row.any():
            sites.append(site)
            rows.append(row)
    return sites, np.stack(rows) if rows else np.zeros((0, 0), np.float32)


def _lead(
    state: State, after: State, updates: RoundUpdates, outcome: Outcome
) -> npt.NDArray[np.float32]:
    """Return how far each cluster's sites went beyond the common model, shape ``(M, d)``."""
    found = np.zeros(outcome.update.shape)
    for site, weight in zip(updates.sites, outcome.weights, strict=True):
        if _BEYOND + site in state:
            found[group_of(after, site)] += weight * state[_BEYOND + site]
    return found.astype(np.float32)


def _is_certain(found: Clusters, state: State, label: Mapping[str, int]) -> bool:
    """Tell whether the sites may part by these clusters."""
    sure = [site for site, p in zip(label, found.confidence, strict=True) if p >= SURE]
    everyone = found.misplaced <= MISPLACED and _agrees(state, label, list(label), looks=2)
    return everyone or (2 * len(sure) >= len(label) and _agrees(state, label, sure, looks=4))


def _agrees(state: State, label: Mapping[str, int], sites: list[str], looks: int) -> bool:
    """Tell whether each of the last looks had the same clusters of those that it knew."""
    for look in range(looks):
        both = [site for site in sites if _seen(state, site)[look] != UNKNOWN]
        now = np.array([label[site] for site in both])
        then = np.array([_seen(state, site)[look] for site in both])
        if not both or not np.array_equal(now[:, None] == now, then[:, None] == then):
            return False
    return True


def _seen(state: State, site: str) -> npt.NDArray[np.float64]:
    return state.get(_SEEN + site, np.full(4, float(UNKNOWN)))


def _named(state: State) -> State:
    """Return the state without what :meth:`ManyModels.combine` puts before its names."""
    return {name.removeprefix(OWN): array for name, array in state.items()}


def _tell(found: Clusters, rounds: int, parts: bool) -> None:
    sizes = "/".join(map(str, found.sizes))
    log.info(
        "after round %d: %s, of %s sites, least separation %.2f; the claim: %s",
        rounds, "a model a cluster from here on" if parts else "clusters not certain yet", sizes,
        found.mss, found.claim,
    )  # fmt: skip
