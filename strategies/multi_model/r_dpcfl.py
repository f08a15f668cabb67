"""R-DPCFL: clusters of exact first updates, drawn while uncertain, then chosen privately.

Malekmohammadi, Taik and Farnadi, Differentially Private Clustered Federated Learning (TMLR 2025;
thesis, chapter 4), Algorithm 2. Round 1: every site trains the common model on all of its records
at once (``first-batch``), which makes its update so exact that groups show. Rounds 2 to E_c: each
site is drawn into a cluster by its probabilities πᵢ, and trains that model; E_c = ⌊(1 − MPO)·E/2⌋,
the sooner over the more the clusters overlap. Then each site chooses among the models privately in
a tenth of the rounds (``selections``), and keeps its model from there on.

``cluster-map`` is the map that finds the clusters: ``pca`` is the paper's, for sites of equal
noise; ``mixture``, ours, knows each site's noise (``hdpfl_flower/clustering/noise_mixture.py``). Clusters that one
cluster explains as well, or that differ by their labels alone, are none (``claims.py``). Where the
number of clusters is to be found and they do not separate, there is one model from then on, and no
choice. Where the terms say how many clusters there are, the sites choose from round 2 on, within
the choices that are charged anyway. A network whose head is not known shows no labels: then only
clusters whose number the terms give are trusted.

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
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hdpfl_flower.claims import judged
from hdpfl_flower.clustering.clusters import LABEL_SKEW, Clusters, cluster_updates, last_soft_round
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.errors import StrategyError
from hdpfl_flower.estimators.softmax_head import Head
from hdpfl_flower.clustering.noise_mixture import cluster_by_noise, noise_of
from hdpfl_flower.updates import RoundUpdates
from strategies.multi_model.private_choice import Choosing, choices_of
from strategies.multi_model.groups import OWN, Ask, Gauges, Grouped, claim_gauges, is_trusted
from strategies.core.roster import site_order
from strategies.core.rule import Disclosed, State

log = logging.getLogger("hdpfl.server")

SHARES, SOFT = "shares/", "last-soft-round"


class RDPCFL(Choosing):
    """Clusters by the first updates, soft at first, then chosen."""

    name = "r-dpcfl"

    def propose(self, terms: RunTerms, disclosed: Disclosed) -> RunTerms:
        """See :meth:`Choosing.propose`; the first batch is a full one unless the terms say."""
        if terms.first_batch == "auto":
            terms = terms.updated(first_batch="full")
        return super().propose(terms, disclosed)

    def begin(self, updates: RoundUpdates) -> Grouped:
        """See :meth:`ManyModels.begin`.

        The journal has the least separation ``clusters_mss``, the largest overlap ``clusters_mpo``,
        whether to trust them, ``clusters_separated``, whether labels explain them,
        ``clusters_label_skew``, ``last_soft_round`` and, where there are clusters, each site's
        ``cluster_confidence``.
        """
        rows = sorted(range(len(updates.sites)), key=lambda i: site_order(updates.sites[i]))
        heard = [i for i in rows if updates.updates[i].any()]
        found = self._clusters(updates.updates[heard], updates.head)
        if found is None:
            return self._without(updates)
        trusted = is_trusted(found, self.terms)
        self._tell(found, trusted)
        told = claim_gauges(found, trusted)
        if not trusted and not self.terms.clusters:
            return self._without(updates, told)
        last = last_soft_round(found.mpo, self.terms.rounds) if trusted else 1
        models = len(found.sizes)
        shares = np.full((len(rows), models), 1 / models)
        shares[heard] = found.shares
        state = {SOFT: np.array([float(last)])}
        state |= {SHARES + updates.sites[i]: shares[i] for i in heard}
        gauges: dict[str, float | npt.NDArray[np.float64]] = {
            **told,
            "last_soft_round": float(last),
            "cluster_confidence": shares.max(axis=1),
        }
        return Grouped(np.argmax(shares, axis=1), models, state, gauges)

    def ask(self, state: State, server_round: int, site: str) -> Ask:
        """See :meth:`ManyModels.ask`: drawn, then chosen, then kept."""
        shares = state.get(OWN + SHARES + site)
        if shares is not None and server_round <= int(state[OWN + SOFT][0]):
            draw = np.random.default_rng([self.terms.seed, server_round, *site.encode()])
            return Ask(int(draw.choice(len(shares), p=shares)))
        if self.may_choose(state, site):
            return self.ask_to_choose(state, site)
        return super().ask(state, server_round, site)

    def home(self, state: State, site: str) -> int:
        """See :meth:`Choosing.home`; before its first choice a site's likeliest cluster."""
        shares = state.get(OWN + SHARES + site)
        if choices_of(state, site) or shares is None:
            return super().home(state, site)
        return int(np.argmax(shares))

    def _clusters(self, updates: npt.NDArray[np.float32], head: Head | None) -> Clusters | None:
        """Return the clusters of the first updates; None where there is nothing to cluster.

        Where their number is given, clusters that labels explain in part stay as many.
        """
        models = self.terms.clusters
        try:
            variances = noise_of(updates, None)
            if self.terms.cluster_map == "mixture":
                found = cluster_by_noise(updates, models, variances)
            else:
                found = cluster_updates(updates, models)
            claimed = judged(found, updates, variances, head)
        except StrategyError as reason:
            log.warning("round 1: no clusters: %s", reason)
            return None
        if models and len(claimed.sizes) < models:
            return replace(found, claim=LABEL_SKEW)
        return claimed

    def _without(self, updates: RoundUpdates, told: Gauges | None = None) -> Grouped:
        """Return one group of all; with a number of clusters given, the sites will choose."""
        models = max(self.terms.clusters, 1) if len(updates.sites) > 1 else 1
        gauges = {"clusters_separated": 0.0, "last_soft_round": 1.0, **(told or {})}
        state = {SOFT: np.array([1.0])}
        return Grouped(np.zeros(len(updates.sites), np.int64), models, state, gauges)

    def _tell(self, found: Clusters, trusted: bool) -> None:
        sizes = "/".join(map(str, found.sizes))
        if trusted:
            log.info(
                "round 1: %d clusters of %s sites, least separation %.2f",
                len(found.sizes), sizes, found.mss,
            )  # fmt: skip
            return
        alone = int(np.count_nonzero(found.sizes == 1))
        log.warning(
            "round 1: no clusters are certain (%s; least separation %.2f%s): %s",
            found.claim, found.mss, f", {alone} of one site" if alone else "",
            "the sites choose from round 2 on; 'local' or 'mr-mtl' may serve them better"
            if self.terms.clusters else "one model for all, as 'fedavg' has; where there are "
            "groups set 'clusters' to their number, or take 'late-clusters'",
        )  # fmt: skip
