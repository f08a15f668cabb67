"""R-DPCFL: clusters of first updates; a site's model is first drawn, later chosen privately.

Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated Learning (TMLR 2025;
thesis, chapter 4), Algorithm 2, in its order:

1. *Clusters*, round 1 (:meth:`RDPCFL.initial_groups`): every client trains the common model on all
   of its records at once (``first-batch``), so that its update is exact enough to show its group.
2. *Soft rounds*, 2 to E_c: each client is drawn into a cluster by its probabilities πᵢ, and trains
   that model; E_c = ⌊(1 − MPO)·E/2⌋, earlier the more the clusters overlap.
3. *Choices* (:meth:`RDPCFL.request_training` has 2 to 4): each client chooses among the models
   privately in a tenth of the rounds (``choice``).
4. *Keep*: then it keeps its model (:meth:`RDPCFL.model_of_site`).

``cluster-map`` is the map that finds the clusters: ``pca`` is the paper's, for sites of equal
noise; ``mixture``, ours, estimates each site's (``hdpfl_flower/clustering/noise_mixture.py``).
Clusters that one cluster explains as well, or that differ by their labels alone, are none
(``claims.py``). Where the number of clusters is to be found and they do not separate, there is one
model from then on, and no choice. Where ``clusters`` states their number, the clients choose from
round 2 on, within the choices that are charged anyway. A network without a known head shows no
labels: then clusters are trusted only where ``clusters`` states their number.

Other than in the authors' code: cluster models start from the common model and the clusters' first
updates; choices are charged beside the training in one accounting with one δ; so many are asked for
as are charged; a site's choices count as votes (``private_choice.py``).

Threat model: an untrusted server; each site's noise protects its records in updates and choices
alike, with its own ε, δ, batch size and records. That a site's noise and cluster can be estimated
from its updates is a fact of any federated DP-SGD. No site discloses anything.

Known limit: with 300 records a site and ε ≤ 5 no map finds the groups in first updates;
``late_clusters.py`` finds them in sums of later ones.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from hdpfl_flower.clustering.claims import judged
from hdpfl_flower.clustering.clusters import LABEL_SKEW, Clusters, cluster_updates, last_soft_round
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise, noise_of
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.releases.of_run import choices_of
from hdpfl_flower.updates import RoundUpdates
from hdpfl_flower.work import Plain
from hdpfl_flower.work.choice import Gaussian
from strategies.core.base import table_of
from strategies.core.interface import Disclosed, SiteRequest
from strategies.core.roster import site_order
from strategies.multi_model.base import MultiModel
from strategies.multi_model.groups import (
    UNKNOWN,
    Assignment,
    ClusterSettings,
    Gauges,
    check_clusters,
    claim_gauges,
    is_trusted,
)
from strategies.multi_model.private_choice import (
    ChoiceState,
    count_votes,
    may_choose,
    request_choice,
)

log = logging.getLogger("hdpfl.server")


@dataclass(frozen=True)
class RDPCFLState(ChoiceState):
    """The state of R-DPCFL.

    Attributes:
        shares: client → πᵢ, its probability of each cluster, shape ``(M,)``; of those with a
            clustered first update.
        last_soft_round: E_c, the last round in which clients are drawn.
    """

    shares: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    last_soft_round: int = 0


class RDPCFLSettings(ClusterSettings):
    """Settings of the clusters: their number and their method."""

    cluster_map: Literal["mixture", "pca"] = Field(
        "mixture",
        description="How the clusters are found: with a mixture that estimates each client's "
        "noise, or with the two principal components of the paper (pca).",
    )


class RDPCFL(MultiModel):
    """Train a model per cluster: clusters from first updates, later chosen by clients."""

    name, choice = "r-dpcfl", Gaussian()
    work = Plain.parse({"first-batch": "full"})
    settings_type = RDPCFLSettings
    settings: RDPCFLSettings

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """Return the terms; ``StrategyError`` with fewer sites than clusters."""
        check_clusters(self.settings, table_of(type(self)), len(disclosed))
        return super().propose(terms, disclosed)

    def initial_state(self, disclosed: Disclosed | None = None) -> RDPCFLState:
        """Return no groups, no votes."""
        return RDPCFLState(weighting=self.weights.initial_state(disclosed))

    # --- 1. clusters of the first updates ------------------------------------------------------

    def initial_groups(
        self, state: RDPCFLState, updates: RoundUpdates
    ) -> tuple[RDPCFLState, Assignment]:
        """Return the clusters of the first updates with each client's probabilities.

        The journal has the least separation ``clusters_mss``, the largest overlap ``clusters_mpo``,
        whether to trust them, ``clusters_separated``, whether labels explain them,
        ``clusters_label_skew``, ``last_soft_round`` and, where there are clusters, each site's
        ``cluster_confidence``.
        """
        # In the sites' order, not that of arrival: the seeded starts of the fit draw by position.
        rows = sorted(range(len(updates.sites)), key=lambda i: site_order(updates.sites[i]))
        # An update of zeros shows no group: its site has 1/M of each cluster.
        nonzero = [i for i in rows if updates.updates[i].any()]
        clusters = self._clusters(updates.updates[nonzero], updates.head)
        if clusters is None:
            return self._no_clusters(state, updates, {})
        trusted = is_trusted(clusters, self.settings)
        self._log(clusters, trusted)
        claim = claim_gauges(clusters, trusted)
        if not trusted and not self.settings.clusters:
            return self._no_clusters(state, updates, claim)
        last = last_soft_round(clusters.mpo, self.terms.rounds) if trusted else 1
        models = len(clusters.sizes)
        shares = np.full((len(rows), models), 1 / models)
        shares[nonzero] = clusters.shares
        by_site = {updates.sites[i]: shares[i] for i in nonzero}
        gauges = {
            **claim,
            "last_soft_round": float(last),
            "cluster_confidence": shares.max(axis=1),
        }
        state = replace(state, shares=by_site, last_soft_round=last)
        return state, Assignment(np.argmax(shares, axis=1), models, gauges)

    # --- 2. soft rounds, 3. choices, 4. keep ---------------------------------------------------

    def request_training(self, state: RDPCFLState, server_round: int, site: str) -> SiteRequest:
        """Return a drawn cluster's model, then a request to choose, then the kept model."""
        shares = state.shares.get(site)
        if shares is not None and server_round <= state.last_soft_round:
            # A function of seed, round and site: a request that is repeated has the same cluster.
            draw = np.random.default_rng([self.simulation.seed, server_round, *site.encode()])
            return SiteRequest(int(draw.choice(len(shares), p=shares)))
        if may_choose(state, site, choices_of(self.terms)):
            return request_choice(self.model_of_site(state, site))
        return SiteRequest(self.model_of_site(state, site))

    def update_groups(self, state: Any, updates: RoundUpdates) -> tuple[Any, Assignment]:
        """Return the groups as trained; choices count as votes."""
        state, assignment = super().update_groups(state, updates)
        state, chose = count_votes(state, updates, assignment.group)
        return state, replace(assignment, gauges={"chose": chose})

    def model_of_site(self, state: RDPCFLState, site: str) -> int:
        """Return the model with the most votes; before any, the likeliest cluster's."""
        voted = state.voted(site)
        if voted != UNKNOWN:
            return voted
        if site in state.shares:
            return int(np.argmax(state.shares[site]))
        return super().model_of_site(state, site)

    # --- parts ---------------------------------------------------------------------------------

    def _clusters(self, updates: npt.NDArray[np.float32], head: Head | None) -> Clusters | None:
        """Return the clusters of the first updates; None if clustering is impossible.

        Where their number is given, clusters that labels explain in part stay as many.
        """
        models = self.settings.clusters
        try:
            variances = noise_of(updates, None)
            if self.settings.cluster_map == "mixture":
                clusters = cluster_by_noise(updates, models, variances)
            else:
                clusters = cluster_updates(updates, models)
            claimed = judged(clusters, updates, variances, head)
        except StrategyError as reason:
            log.warning("round 1: no clusters: %s", reason)
            return None
        if models and len(claimed.sizes) < models:
            return replace(clusters, claim=LABEL_SKEW)
        return claimed

    def _no_clusters(
        self, state: RDPCFLState, updates: RoundUpdates, claim: Gauges
    ) -> tuple[RDPCFLState, Assignment]:
        """Return one group of all; clients choose if the number is given."""
        models = max(self.settings.clusters, 1) if len(updates.sites) > 1 else 1
        gauges = {"clusters_separated": 0.0, "last_soft_round": 1.0, **claim}
        group = np.zeros(len(updates.sites), np.int64)
        return replace(state, last_soft_round=1), Assignment(group, models, gauges)

    def _log(self, clusters: Clusters, trusted: bool) -> None:
        sizes = "/".join(map(str, clusters.sizes))
        if trusted:
            log.info(
                "round 1: %d clusters of %s sites, least separation %.2f",
                len(clusters.sizes),
                sizes,
                clusters.mss,
            )
            return
        alone = int(np.count_nonzero(clusters.sizes == 1))
        log.warning(
            "round 1: no clusters are certain (%s; least separation %.2f%s): %s",
            clusters.claim,
            clusters.mss,
            f", {alone} of one site" if alone else "",
            "the sites choose from round 2 on; 'local' or 'mr-mtl' may serve them better"
            if self.settings.clusters
            else "all sites share one model, as with 'fedavg'; if there are groups, set "
            f"'{table_of(type(self))}.clusters' to their number, or take 'late-clusters'",
        )
